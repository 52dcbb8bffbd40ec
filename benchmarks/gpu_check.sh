#!/usr/bin/env bash
# One command for a CUDA machine, at most five minutes:
#
#     benchmarks/gpu_check.sh [FOLDER] [BACKEND...]
#
# judges the GPU backends by the conformance suite on the device, compares them in decode and
# prefill, runs compute-sanitizer over a few cases where it is installed, and leaves JSON in FOLDER
# (default: benchmarks/results/<GPU>-<date>). Without a CUDA device it says so, writes only the
# environment and the states of the backends, measures nothing, and exits 0. PYTHON chooses the
# interpreter. Exit code 1: a backend that could be opened does not conform or was wrong.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
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
END=$((SECONDS + 290))
step() {  # step SECONDS NAME COMMAND...: within its own limit and the script's; one line of outcome
  local limit=$1 name=$2 start=$SECONDS code=0
  shift 2
  [ "$limit" -le $((END - SECONDS)) ] || limit=$((END - SECONDS))
  if [ "$limit" -lt 5 ]; then
    echo "$name: not run, no time left"
    return 0
  fi
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1 || code=$?
  echo "$name: exit code $code after $((SECONDS - start)) s; $(tail -n 1 "$OUT/$name.log")"
  return "$code"
}

# Most of the suite is compilation on the host, so the backends are judged side by side, each in
# several processes; what is timed comes after them, alone.
failed=0
checks=()
for name in $READY; do
  step 130 "check-$name" "$PYTHON" -m pagedattn check "$name" --device cuda --jobs 4 --case-time 60 \
    --max-time 110 --json "$OUT/check-$name.json" &
  checks+=($!)
done
for job in "${checks[@]}"; do wait "$job" || failed=1; done

compare() {  # compare NAME PHASE OPTIONS...
  # shellcheck disable=SC2086
  step 50 "$1" "$PYTHON" -m pagedattn bench "$2" --backend $READY --device cuda --max-time 2 --samples 20 \
    --json "$OUT/$1.json" --md "$OUT/$1.md" "${@:3}" || failed=1
}
compare decode decode --batch 8,64 --context 4k
compare decode-fp8 decode --batch 8,64 --context 4k --kv-quant per_head
compare prefill prefill --batch 1 --context 2k,4k
if command -v compute-sanitizer > /dev/null; then
  for name in $READY; do
    step 40 "sanitizer-$name" compute-sanitizer --error-exitcode 1 "$PYTHON" -m pagedattn check "$name" \
      --device cuda -k core/decode --max-time 30 || failed=1
  done
else
  echo "compute-sanitizer is not installed: not run"
fi
exit $failed
