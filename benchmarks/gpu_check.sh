#!/usr/bin/env bash
# One command for a CUDA machine, at most five minutes, all that it installs and compiles included:
#
#     benchmarks/gpu_check.sh [FOLDER] [BACKEND...]
#
# judges the GPU backends by the conformance suite on the device, compares them in decode and
# prefill, runs compute-sanitizer over a few cases where it is installed, and leaves JSON in FOLDER
# (default: benchmarks/results/<GPU>-<date>). Without a CUDA device it says so, writes only the
# environment and the states of the backends, measures nothing, and exits 0. PYTHON chooses the
# interpreter.
#
# Exit code 1: a case failed, a timed backend was wrong, or compute-sanitizer found an error. Cases
# that did not get their turn are counted and fail nothing: they were not judged. Exit code 2: no
# failure, but a step ended without a result for another reason than its time.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
END=290  # of SECONDS, which count from the start of this script
OUT=${1:-}
BACKENDS=("${@:2}")
[ ${#BACKENDS[@]} -gt 0 ] || BACKENDS=(triton cupy cupy:wgmma flash_attn flashinfer)
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

# Without an installation (an offline machine), install this tree beside the environment's packages.
if ! "$PYTHON" -c 'import pagedattn' 2>/dev/null; then
  "$PYTHON" -m pip install -q --no-deps --no-build-isolation --target "$SCRATCH/site" . || exit 2
  export PYTHONPATH="$SCRATCH/site${PYTHONPATH:+:$PYTHONPATH}"
fi
run() { "$PYTHON" -m pagedattn "$@"; }

GPU=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "")')
[ -n "$OUT" ] || OUT="benchmarks/results/$(echo "${GPU:-no-gpu}" | tr ' /' '--')-$(date +%F)"
mkdir -p "$OUT"
run env --json > "$OUT/env.json"
run backends --json > "$OUT/backends.json"
if [ -z "$GPU" ]; then
  echo "no CUDA device here: nothing was judged and nothing was measured on a GPU; states in $OUT/backends.json"
  exit 0
fi

READY=$("$PYTHON" - "$OUT/backends.json" "${BACKENDS[@]}" <<'PY'
import json, sys, torch
ready = {row["name"] for row in json.load(open(sys.argv[1])) if row["state"] == "ready"}
if torch.cuda.get_device_capability() != (9, 0):
    ready.discard("cupy:wgmma")  # for Hopper alone
print(*(name for name in sys.argv[2:] if name in ready))
PY
)
echo "device: $GPU; backends: ${READY:-none of ${BACKENDS[*]} is ready, see $OUT/backends.json}"
[ -n "$READY" ] || exit 0
failed=0 broken=0
step() {  # step SECONDS NAME COMMAND...: within its own limit and the script's; sets `code`, 124: out of time
  local limit=$1 name=$2 start=$SECONDS
  shift 2
  code=0
  [ "$limit" -le $((END - SECONDS)) ] || limit=$((END - SECONDS))
  if [ "$limit" -lt 5 ]; then
    echo "$name: not run, no time left"
    code=124
    return
  fi
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1 || code=$?
  took="after $((SECONDS - start)) s"
  [ "$code" -ne 124 ] || echo "$name: stopped $took, out of time; see $OUT/$name.log"
}

# What `pagedattn check` found, from its JSON: code 1 a case failed, 3 none did but some were not run
# because their time was spent, 2 something else is missing.
verdict() {
  "$PYTHON" - "$OUT/$1.json" <<'PY'
import json, sys
try:
    (run,) = json.load(open(sys.argv[1]))["runs"]
except (OSError, ValueError):
    print("no report")
    sys.exit(2)
verdict, counts = run["verdict"], run["verdict"]["counts"]
late = sum("--max-time" in c["detail"] for c in run["cases"] if c["outcome"] == "not run")
other = counts["not run"] - late
ran = counts["passed"] + counts["failed"] + counts["known failure"]
said = [f"{counts[word]} {word}" for word in ("passed", "declined", "failed", "known failure") if counts[word]]
said += [f"{late} NOT RUN in the time"] if late else []
said += [f"{other} not run for another reason"] if other else []
word = verdict["word"]
if not counts["failed"] and not other and ran and late:
    word = "NO FAILURE, NOT ALL JUDGED"
print(f"{word}: {', '.join(said)}")
sys.exit(1 if counts["failed"] else 2 if other or not (ran or late) else 3 if late else 0)
PY
}

check() {  # check SECONDS NAME [COMMAND...] -- OPTIONS...: one run of `pagedattn check`; exits as verdict()
  local limit=$1 name=$2 before=() said found=0
  shift 2
  while [ "$1" != -- ]; do before+=("$1"); shift; done
  step "$limit" "$name" "${before[@]}" "$PYTHON" -m pagedattn check "${@:2}" --device cuda --json "$OUT/$name.json"
  [ "$code" -ne 124 ] || return 3
  [ "$code" -ne "$SANITIZER" ] || { echo "$name: compute-sanitizer found errors; see $OUT/$name.log"; return 1; }
  said=$(verdict "$name") || found=$?
  [ -f "$OUT/$name.json" ] || said="exit code $code, $(tail -n 1 "$OUT/$name.log")"
  echo "$name: $said ($took)"
  return "$found"
}
note() {  # note CODE of check()
  case $1 in 0 | 3) ;; 1) failed=1 ;; *) broken=1 ;; esac
}
SANITIZER=99

# Most of the suite is compilation on the host (an instantiation takes NVRTC 2 to 4 s), so the
# backends are judged side by side, each in several processes; what is timed comes after them, alone.
# A case that began in time may end 75 s later.
rm -f "$OUT"/check-*.json "$OUT"/sanitizer-*.json
checks=()
for name in $READY; do
  check 180 "check-$name" -- "$name" --jobs 8 --case-time 75 --max-time 100 &
  checks+=($!)
done
for job in "${checks[@]}"; do
  wait "$job"
  note $?
done

compare() {  # compare NAME PHASE OPTIONS...
  # shellcheck disable=SC2086
  step 50 "$1" "$PYTHON" -m pagedattn bench "$2" --backend $READY --device cuda --max-time 2 --samples 20 \
    --json "$OUT/$1.json" --md "$OUT/$1.md" "${@:3}"
  [ "$code" -ne 124 ] || return
  echo "$1: exit code $code $took; $(tail -n 1 "$OUT/$1.log")"
  note "$code"
}
compare decode decode --batch 8,64 --context 4k
compare decode-fp8 decode --batch 8,64 --context 4k --kv-quant per_head
compare prefill prefill --batch 1 --context 2k,4k
if command -v compute-sanitizer > /dev/null; then
  for name in $READY; do
    check 40 "sanitizer-$name" compute-sanitizer --error-exitcode "$SANITIZER" -- "$name" -k core/decode --max-time 30
    note $?
  done
else
  echo "compute-sanitizer is not installed: not run"
fi
[ $failed -eq 0 ] || exit 1
exit $((broken * 2))
