"""The suite is tested by backends with one planted bug each: a named case kills every one."""

import pytest
import torch

from pagedattn.conformance.attention import ATTENTION_CASES, AttentionSubject
from pagedattn.conformance.case import Outcome
from pagedattn.conformance.mutants import ATTENTION_MUTANTS
from pagedattn.conformance.mutants.honest import HonestBackend
from pagedattn.conformance.mutants.launch_bugs import MadeUpGpuBackend
from pagedattn.conformance.runner import judge_case, run_cases, verdict

CASES = {case.id: case for case in ATTENTION_CASES}

KILLED_BY = {
    # values at the ends
    "sink-not-in-max": ("sinks/extreme",),
    "scale-made-positive": ("scale/negative",),
    "scale-zero-is-default": ("scale/zero",),
    "tree-in-a-word": ("tree/wide-70",),
    "alibi-in-bfloat16": ("alibi/far",),
    "head-scales-packed": ("quant/int8/per-head/decode",),
    "v-by-strides-of-k": ("memory/kv-gaps/decode",),
    # what is no number
    "nan-is-empty": ("nan/q", "nan/k"),
    "nan-lse-is-empty": ("nan/q/lse", "nan/k/lse"),
    "nan-key-skipped": ("nan/k", "nan/split/first"),
    "nan-value-is-0": ("nan/v",),
    "nan-capped": ("nan/q/softcap", "nan/k/softcap"),
    "nan-part-dropped": ("nan/split/middle",),
    "zero-times-neighbours": ("nan/v", "nan/plus-inf", "nan/minus-inf"),
    "zero-times-the-last-step": ("nan/split/middle",),
    "softcap-of-short-tanh": ("softcap/large-1e7/bfloat16",),
    # wrong keys
    "causal-top-left": ("causal/alignment", "chunk/7"),
    "causal-off-by-one": ("causal/future-keys", "causal/rows-3-keys-4"),
    "own-key-missing": ("step/write-then-run", "causal/alignment"),
    "prefix-ignored": ("chunk/3", "causal/rows-2-keys-4"),
    "window-one-wide": ("window/left-3/decode", "window/phases-agree"),
    "window-one-narrow": ("window/left-3/decode", "window/left-1/prefill"),
    "window-decode-ignored": ("window/left-bs/decode", "window/phases-agree"),
    "window-block-aligned": ("window/left-bs/decode",),
    "window-from-row-0": ("window/left-3/prefill",),
    "window-right-ignored": ("full/window-none-2", "full/window-3-2"),
    "window-overflow": ("full/window-max-max",),
    "window-counts-itself": ("window/left-bs/decode",),
    "tail-attended": ("poison/nan/decode", "poison/v-nan/decode", "length/bs+1/decode"),
    "extra-block": ("table/extra-block",),
    "last-block-empty": ("length/bs/decode", "length/2bs/decode"),
    "blocks-floored": ("length/bs+1/decode", "length/2bs-1/decode"),
    "host-lengths": ("async/bound-plus-1/decode", "async/bound-plus-40/mixed"),
    "one-row-each": ("empty/decode", "empty/decode-hole"),
    "empty-skipped": ("empty/no-keys-decode", "merge/prefix-parts"),
    "no-key-skipped": ("causal/rows-5-keys-4", "causal/rows-6-keys-4"),
    "empty-is-nan": ("empty/no-keys-decode", "causal/rows-6-keys-4"),
    "empty-lse-zero": ("merge/prefix-parts", "lse/decode"),
    "empty-is-uniform": ("causal/rows-5-keys-4",),
    "tree-ignored": ("tree/random", "tree/siblings"),
    "tree-bit-order": ("tree/random", "tree/siblings"),
    "tree-and-causal": ("tree/siblings",),
    "long-cut": ("long/16385",),
    # wrong memory
    "zero-times-nan-v": ("poison/v-nan/decode", "poison/v-inf/decode"),
    "minus-inf-added": ("poison/k-nan/decode",),
    "finite-mask": ("window/low-scores-20000",),
    "block-0-sanitised": ("plan/negative-id", "plan/id-beyond-pool"),
    "id-in-a-byte": ("length/many-requests",),
    "blocks-in-sequence": ("placement/decode", "length/many-requests"),
    "table-flat": ("table/strided", "memory/everything/decode"),
    "kv-stride-recomputed": ("memory/kv-interleaved/decode", "layout/hnd-gaps/decode"),
    "hnd-read-as-nhd": ("layout/hnd-plain/decode", "layout/hnd-square"),
    "layout-by-shape": ("write/hnd", "step/write-then-run/hnd"),
    "dim-padded": ("head-dim/96", "head-dim/80"),
    "q-contiguous": ("memory/q-fused/decode", "memory/q-transposed/mixed"),
    "out-contiguous": ("memory/out-fused/decode", "memory/out-transposed/mixed"),
    "padding-rows-zeroed": ("padding/3-rows/none", "padding/prefill"),
    "padding-rows-mixed": ("padding/3-rows/none", "padding/prefill"),
    "out-accumulated": ("length/alone",),
    "cache-cleaned": ("length/bs+1/decode",),
    "kv-scales-ignored": ("quant/int8/per-tensor/decode", "quant/fp8-e4m3/per-token-head/mixed"),
    "scale-of-head-0": ("quant/int8/per-head/decode", "quant/fp8-e5m2/per-head/mixed"),
    "scales-read-flat": ("quant/int8/per-token-head/decode",),
    "sinks-dropped-8-bit": ("quant/with-sinks",),
    "slot-minus-one": ("write/negative-slots", "write/no-live-row"),
    "write-all-rows": ("write/padding-rows",),
    "write-skips-to-0": ("write/negative-slots", "write/no-live-row"),
    "write-by-shape": ("write/hnd", "write/hnd-interleaved"),
    "write-v-from-k-rows": ("write/fused",),
    "int8-truncated": ("write/int8/per-tensor/normal",),
    "int8-wraps": ("write/int8/per-head/saturated",),
    "token-scale-stale": ("write/int8/per-token-head/normal",),
    # wrong numbers
    "heads-interleaved": ("gqa/mapping", "gqa/9-3/decode"),
    "heads-all-0": ("gqa/mapping", "gqa/4-4/decode"),
    "group-over-16": ("gqa/24-1/decode", "gqa/48-1/mixed"),
    "first-64-dims": ("head-dim/upper-half", "core/decode/dim-128/group-1"),
    "scale-ignored": ("scale/1", "scale/0.5"),
    "softcap-dropped": ("softcap/2/decode", "softcap/30/prefill"),
    "softcap-before-scale": ("softcap/2/decode",),
    "softcap-after-mask": ("softcap/before-mask",),
    "alibi-sign": ("alibi/sign/decode", "alibi/slopes/mixed"),
    "alibi-from-0": ("alibi/origin",),
    "alibi-full-signed": ("alibi/full",),
    "sinks-dropped": ("sinks/closed-form", "sinks/normal/decode"),
    "sinks-per-split": ("sinks/split-700",),
    "sinks-scaled": ("sinks/closed-form",),
    "lse-base-2": ("lse/natural", "merge/halves"),
    "lse-without-sinks": ("lse/sinks", "merge/sinks"),
    "lse-is-maximum": ("lse/natural", "merge/uneven"),
    "no-maximum": ("range/scores-300",),
    "products-in-16-bits": ("range/products-90000/float16",),
    "sum-in-16-bits": ("range/tiny-weights/bfloat16",),
    "weights-in-8-bits": ("core/decode/dim-64/group-4",),
    # broken promises
    "unordered-sums": ("again/decode", "again/mixed"),
    "order-of-ids": ("placement/decode",),
    "maximum-of-neighbours": ("neighbours/decode",),
    "batch-dependent-split": ("batch-invariance/long", "batch-invariance/rows"),
    "into-moves": ("into/refresh",),
    "into-stale": ("into/refresh",),
    "plan-shared": ("plans/two-alive",),
    "plan-unchecked": ("plan/length-beyond-table", "plan/negative-id", "plan/slot-twice"),
    "run-unchecked": ("arguments/q-rows", "arguments/lse-unasked", "arguments/out-is-q"),
    "inputs-scaled": ("length/alone",),
    "refusals-flip": ("honesty/softcap",),
    "refusals-vary": ("honesty/sinks",),
    "computes-declined": ("honesty/alibi", "alibi/slopes/decode"),
    "core-declined": ("core/decode/dim-64/group-4",),
    "refusal-unexplained": ("honesty/sinks",),
    "probes-made-up-devices": ("honesty/made-up-device",),
    "workspace-taken-for-zero": ("honesty/workspace",),
    "workspace-overrun": ("honesty/workspace",),
    "workspace-product": ("honesty/workspace",),
    "tuning-wrong": ("honesty/tuning",),
    # far away and in odd shapes
    "kv-offset-32-bits": ("reach/far-blocks",),
    "q-offset-32-bits": ("reach/far-rows",),
    "requests-on-grid-y": ("reach/requests",),
    "rows-on-grid-y": ("reach/rows",),
    "logits-in-shared-memory": ("long/16385",),
    "request-of-empty-row": ("empty/middle",),
    "block-of-power-of-two": ("block-size/24", "page-size/plain", "page-size/lse"),
    "groups-compiled": ("gqa/10-2/decode",),
    "empty-parts-merged": ("merge/empty-last", "merge/empty-first"),
    "value-dim-cut": ("head-dim/64-v-128", "honesty/edges-head-dim-v"),
    "launched-late": ("launch/elsewhere", "length/alone"),
    "one-thread-for-ever": ("launch/elsewhere",),
    "memory-kept": ("launch/temporaries",),
    "graph-on-a-cpu": ("launch/graph",),
    "state-from-an-earlier-batch": ("random/plain/decode", "end-to-end/plain"),
    "window-and-alibi": ("together/window+alibi",),
    "odd-blocks-of-hnd": ("pairs/bf16-d80-g7-b5-hnd-prefill-full-left-alibi-lse-int8-head-outf32",),
    "range-overstated": ("honesty/edges-head-dim",),
    "range-understated": ("honesty/edges-block-size",),
    # options that are lost beside others
    "window-lost-with-softcap": ("together/window+softcap",),
    "window-lost-with-8-bit": ("together/window+int8-token-head",),
    "alibi-lost-with-window": ("together/window+alibi",),
    "alibi-lost-with-8-bit": ("together/alibi+int8-token-head", "together/alibi+fp8-head"),
    "tree-lost-with-8-bit": ("together/tree+int8-token-head",),
    "softcap-lost-with-8-bit": ("together/softcap+fp8-head",),
    "softcap-lost-with-tree": ("together/softcap+tree",),
    "softcap-lost-with-sinks": ("together/softcap+sinks",),
    "sinks-lost-with-tree": ("together/sinks+tree",),
    "sinks-lost-with-alibi": ("together/sinks+alibi",),
    "sinks-lost-with-window": ("together/window+sinks",),
    "8-bit-lost-with-alibi": ("together/alibi+fp8-head",),
    "softcap-lost-with-full": ("together/softcap+full",),
    "sinks-lost-with-full": ("together/sinks+full",),
    "window-lost-with-many-keys": ("long/with-window",),
    "softcap-lost-with-many-keys": ("long/with-softcap",),
    "sinks-lost-with-many-keys": ("long/with-sinks",),
    "alibi-lost-with-many-keys": ("long/with-alibi",),
    "8-bit-lost-with-many-keys": ("long/with-int8-token-head", "long/with-fp8-head"),
    "lse-lost-with-many-keys": ("long/with-lse",),
    # rounding
    "out-rounded-twice": ("dtype/bfloat16-rounded-once",),
    "lse-rounded-twice": ("lse/bfloat16-rounded-once",),
    "kv-rounded-to-q": ("dtype/bfloat16-as-stored", "range/wide-keys"),
    "kv-bits-as-q": ("dtype/bfloat16-over-float16",),
    "slopes-in-bfloat16": ("alibi/any-slopes",),
    "slopes-assumed": ("alibi/any-slopes",),
    "softcap-by-exp": ("softcap/far-above-1",),
    "v-scale-of-k": ("quant/int8/per-tensor/decode",),
    "scale-of-the-block": ("quant/int8/per-token-head/decode",),
    "int8-half-up": ("write/int8/per-tensor/ties", "write/int8/per-head/ties"),
    "scale-of-the-step": ("write/int8/per-tensor/normal",),
    "write-cuts-bits": ("write/float32-into-bfloat16",),
    # what is remembered, and untidy metadata
    "first-cache-for-ever": ("plans/layers/plain",),
    "first-scales-for-ever": ("plans/layers/int8-tensor", "plans/layers/int8-head"),
    "reads-what-it-wrote": ("step/copy/plain",),
    "first-sinks-for-ever": ("plans/layers/sinks",),
    "spec-on-the-backend": ("plans/two-ops",),
    "slots-remembered": ("write/in-place",),
    "rows-of-the-first-plan": ("into/other-rows",),
    "schedule-in-scratch": ("plans/scratch",),
    "rowless-requests-read": ("table/no-rows",),
    "one-table-by-first-block": ("table/shared-prefix",),
    "tree-bytes-packed": ("tree/gaps",),
    "tree-columns-unshifted": ("tree/more-rows-than-keys",),
    "window-of-the-bound": ("async/window/decode",),
    "positions-of-16-bits": ("long/33000",),
    "row-tiles-overlap": ("chunk/300-rows/plain",),
    "last-of-a-full-tile": ("length/tiles/decode",),
    "batch-of-128": ("length/200-requests",),
    "splits-of-few": ("long/crowd",),
    "kv-heads-over-32": ("gqa/40-40/decode",),
    "heads-over-96": ("gqa/128-8/decode",),
    "groups-in-long-prefills": ("chunk/300-rows/plain",),
    "last-slot-refused": ("write/borders",),
    "slot-0-skipped": ("write/borders",),
    "slots-from-the-first": ("write/reversed",),
    "write-rows-on-grid-y": ("write/many-rows",),
    "tables-on-the-default-device": ("launch/default-device/plain/decode",),
    # remembered under too little
    "pools-by-id": ("plans/caches-come-and-go",),
    "v-by-pointer-of-k": ("plans/caches-come-and-go",),
    "strides-of-the-first-cache": ("plans/layers/other-strides",),
    "q-by-pointer": ("plans/rows/other-strides",),
    "vectors-by-pointer": ("plans/in-place/sinks", "plans/in-place/alibi"),
    "lengths-by-summary": ("plans/same-memory/decode",),
    "starts-by-summary": ("plans/same-memory/mixed",),
    "table-by-pointer": ("plans/same-memory/decode",),
    "eight-plans": ("plans/nine-alive",),
    "plan-for-32-layers": ("plans/layers/many",),
    "config-after-8-runs": ("again/decode",),
    "trees-kept": ("into/trees",),
    "softcap-not-in-key": ("plans/two-ops/softcap",),
    "window-of-the-last-op": ("plans/two-ops/window", "plans/two-ops/no-window"),
    # from some size on
    "chunk-over-4096": ("long/chunk",),
    "window-over-2048": ("long/wide-window",),
    "right-over-64": ("full/wide-window",),
    "row-17": ("chunk/tile-plus-1",),
    "decodes-first": ("chunk/between-decodes",),
    "shared-prefix-not-causal": ("table/all-shared/prefill",),
    "shared-prefix-no-window": ("table/all-shared/window",),
    "repeated-blocks-once": ("table/repeated-block",),
    "row-sees-itself": ("tree/one-row",),
    "tree-from-byte-0": ("tree/offset",),
    "tree-rows-over-128": ("tree/wide-140",),
    "tree-by-the-bound": ("async/tree",),
    "one-key-at-least": ("async/no-keys",),
    "groups-of-9-to-15": ("gqa/24-2/decode", "gqa/20-2/mixed"),
    "odd-heads-of-hnd": ("layout/hnd-9-3",),
    "shared-kv-16-heads": ("shared-kv/many-heads",),
    "split-by-query-in-windows": ("batch-invariance/window",),
    "split-from-33-requests": ("batch-invariance/rows",),
    "split-from-64-rows": ("batch-invariance/rows",),
    # inputs that are taken for tidier than they are
    "q-aligned-only": ("memory/q-odd/decode",),
    "pools-aligned-only": ("memory/kv-odd/decode",),
    "stride-0-of-heads": ("memory/q-equal-heads",),
    "values-below-20000": ("range/values-60000/float16",),
    "out-cut-off": ("dtype/bfloat16-to-nearest",),
    "zero-sinks-off": ("sinks/zero",),
    "slopes-up-to-1": ("alibi/steep",),
    "lse-floor": ("lse/far-below",),
    "new-v-by-strides-of-k": ("write/rows/plain-fused",),
    "new-rows-aligned-only": ("write/rows/odd-gaps-unaligned",),
    "new-nan-cleaned": ("write/bfloat16/any-bits",),
    "new-rows-scaled-in-place": ("write/plain",),
    "v-columns-of-k": ("write/value-dim-wider",),
    "divided-in-16-bits": ("write/int8/per-tensor/bfloat16", "write/int8/per-head/float16"),
    "e5m2-overflows": ("write/fp8-e5m2/per-tensor/saturated",),
    "scale-floor": ("write/int8/per-token-head/tiny",),
    "scale-of-64-columns": ("write/int8/per-token-head/dim-80",),
    "seeds-everybody": ("launch/leaves-all-as-it-was",),
    "limits-overflow": ("honesty/large-limits",),
    "describes-what-it-knows": ("honesty/described",),
    "knob-of-nothing": ("honesty/described",),
    "workspace-to-the-byte": ("honesty/workspace-anywhere",),
    # promises of a GPU backend
    "grid-from-the-device": ("launch/run-does-not-wait",),
    "plan-waits": ("launch/plan-does-not-wait",),
    "write-compacts": ("launch/write-does-not-wait",),
    "lengths-baked-in": ("launch/graph",),
    "triton:temporary": ("launch/temporaries",),
}


def test_every_mutant_has_a_killing_case():
    assert set(KILLED_BY) == set(ATTENTION_MUTANTS)
    assert len(ATTENTION_MUTANTS) >= 20


@pytest.mark.parametrize("name", KILLED_BY)
def test_mutant_is_killed_by_its_named_cases(name):
    mutant = ATTENTION_MUTANTS[name]
    for id in KILLED_BY[name]:
        subject = AttentionSubject(mutant.make(), torch.device("cpu"))
        result = judge_case(subject, CASES[id])
        assert result.outcome is Outcome.FAILED, f"{id} lets {name} pass: {mutant.summary}"
        assert result.detail


def test_the_honest_backend_passes_the_killing_cases():
    """Otherwise a case that always fails would kill everything."""
    named = {id for ids in KILLED_BY.values() for id in ids}
    launches = {id for id in named if id.startswith("launch/")}
    for backend, ids in ((HonestBackend(), named - launches), (MadeUpGpuBackend(), launches)):
        subject = AttentionSubject(backend, torch.device("cpu"))
        results = run_cases(subject, [case for id, case in CASES.items() if id in ids])
        assert [r.case for r in results if r.outcome is not Outcome.PASSED] == []
        assert verdict(results).conforms


def test_what_would_have_waited_is_named():
    """A GPU that is made up waits for nothing; what the host reads of its memory is seen."""
    for name, words in (
        ("grid-from-the-device", "run() looks at device memory from the host"),
        ("plan-waits", "plan() looks at device memory from the host"),
        ("write-compacts", "write() looks at device memory from the host"),
    ):
        subject = AttentionSubject(ATTENTION_MUTANTS[name].make(), torch.device("cpu"))
        detail = judge_case(subject, CASES[KILLED_BY[name][0]]).detail
        assert words in detail
        assert "launch_bugs.py:" in detail  # the line to look at
    cpu = AttentionSubject(HonestBackend(), torch.device("cpu"))
    measures = judge_case(cpu, CASES["launch/plan-does-not-wait"]).measures
    assert measures["waits"] == "nothing to wait for on a CPU"


@pytest.mark.parametrize("name", sorted(ATTENTION_MUTANTS))
def test_mutant_says_what_it_does(name):
    mutant = ATTENTION_MUTANTS[name]
    assert mutant.name == name == mutant.make().name
    assert mutant.summary
    assert all(fault.startswith("KH-") for fault in mutant.faults)
    # Every fault that a mutant stands for is claimed by a case that kills it.
    for fault in mutant.faults:
        assert any(fault in case.faults for case in ATTENTION_CASES)
