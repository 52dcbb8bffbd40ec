"""The oracle, the allowed error and the guesses. Expected values are closed forms or torch's own
attention, not the reference backend."""

import dataclasses
import math

import pytest
import torch

import pagedattn as pa
from pagedattn.conformance.attention.budget import budget, dtype_label
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.diagnose import guess
from pagedattn.conformance.attention.execute import Produced
from pagedattn.conformance.attention.judge import compare, needs
from pagedattn.conformance.attention.masking import counting
from pagedattn.conformance.attention.oracle import RULES, plain, truth, visible
from pagedattn.conformance.case import CaseFailure


def spec(**options):
    values = {
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "block_size": 4,
        "dtype": torch.float32,
        "scale": 0.25,
        **options,
    }
    return pa.AttentionSpec(**values)


def content(query_lens, seq_lens, seed=3, **options):
    return Content.random(spec(**options), query_lens, seq_lens, seed)


def test_against_torch_attention():
    step = content([3, 5], [9, 5])
    answer = truth(step)
    for r in range(2):
        rows, keys = len(step.q[r]), len(step.k[r])
        mask = torch.arange(keys) <= torch.arange(keys - rows, keys)[:, None]
        expected = torch.nn.functional.scaled_dot_product_attention(
            step.q[r].double().transpose(0, 1),
            step.k[r].double().repeat_interleave(3, 1).transpose(0, 1),
            step.v[r].double().repeat_interleave(3, 1).transpose(0, 1),
            attn_mask=mask,
            scale=0.25,
        ).transpose(0, 1)
        torch.testing.assert_close(answer.out[r], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "rows", "keys", "expected"),
    [
        ({}, 2, 5, [2.5, 3.0]),  # bottom right
        ({}, 1, 9, [5.0]),
        ({"window": (1, None)}, 3, 5, [2.5, 3.5, 4.5]),
        ({"window": (0, None)}, 3, 5, [3.0, 4.0, 5.0]),
        ({"mask": pa.Mask.FULL}, 2, 5, [3.0, 3.0]),
        ({"mask": pa.Mask.FULL, "window": (1, 1)}, 3, 5, [3.0, 4.0, 4.5]),
        ({}, 3, 2, [0.0, 1.0, 1.5]),  # the first row sees no key
    ],
)
def test_visible_keys_are_averaged(options, rows, keys, expected):
    answer = truth(counting(content([rows], [keys], **options)))
    assert answer.out[0][:, 0, 0].tolist() == pytest.approx(expected)


def test_lse_is_natural_and_counts_the_sink():
    step = content([1], [8], return_lse=True, sinks=True)
    step = dataclasses.replace(step, q=(torch.zeros_like(step.q[0]),), sinks=torch.ones(6))
    answer = truth(step)
    assert answer.lse[0][0, 0].item() == pytest.approx(math.log(8 + math.e))
    without = truth(step, dataclasses.replace(RULES, lse_sinks=False))
    assert without.lse[0][0, 0].item() == pytest.approx(math.log(8))


def test_a_row_without_keys():
    step = content([2], [0], return_lse=True)
    answer = truth(step)
    assert not answer.out[0].any()
    assert bool((answer.lse[0] == float("-inf")).all())
    sunk = truth(content([2], [0], sinks=True))
    assert not sunk.out[0].any()
    torch.testing.assert_close(
        sunk.lse[0][0], content([2], [0], sinks=True).sinks.double(), rtol=1e-12, atol=0
    )


def test_softcap_and_alibi_by_hand():
    step = content([1], [2], softcap=1.5, num_heads=1, num_kv_heads=1)
    score = [float(step.q[0][0, 0].double() @ step.k[0][j, 0].double()) * 0.25 for j in (0, 1)]
    weight = [math.exp(1.5 * math.tanh(s / 1.5)) for s in score]
    expected = (weight[0] * step.v[0][0, 0].double() + weight[1] * step.v[0][1, 0].double()) / sum(
        weight
    )
    torch.testing.assert_close(truth(step).out[0][0, 0], expected, rtol=1e-12, atol=1e-12)
    step = content([1], [3], alibi=True, return_lse=True, num_heads=1, num_kv_heads=1)
    step = dataclasses.replace(step, q=(torch.zeros_like(step.q[0]),))
    expected_lse = math.log(math.exp(-1.0) + math.exp(-0.5) + 1.0)  # slope 1/2, distances -2 -1 0
    assert truth(step).lse[0][0, 0].item() == pytest.approx(expected_lse)


def test_tree():
    step = content([3], [4], mask=pa.Mask.TREE)
    tree = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]]).bool()
    seen = visible(dataclasses.replace(step, trees=(tree,)), 0)
    assert seen.int().tolist() == [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    plain_causal = visible(dataclasses.replace(step, trees=(None,)), 0)
    assert plain_causal.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_budget_follows_the_dtype_and_the_cache():
    rough = budget(content([1], [30], dtype=torch.bfloat16), truth(content([1], [30])))
    fine = content([1], [30])
    limits = budget(fine, truth(fine))
    assert 1e-7 < limits.out[0] < 1e-5 < 1e-3 < rough.out[0] < 0.1
    eight = content([1], [30], kv_dtype=torch.int8, kv_quant=pa.KVQuant.PER_HEAD)
    same = dataclasses.replace(eight, spec=dataclasses.replace(eight.spec))
    assert budget(eight, truth(eight)).out == budget(same, truth(same)).out
    assert dtype_label(eight.spec) == "int8"
    assert dtype_label(fine.spec) == "float32"
    empty = content([1], [0])
    assert budget(empty, truth(empty)).out == (0.0,)


def test_a_long_request_is_not_judged_by_a_short_one():
    both = content([1, 1], [1, 400])
    limits = budget(both, truth(both))
    assert limits.out[1] < limits.out[0] / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_plain_computation_passes(dtype):
    step = content([1, 3], [30, 9], dtype=dtype, return_lse=True)
    rough = plain(step)
    measures = compare(step, Produced(list(rough.out), [x.float() for x in rough.lse]))
    assert measures.get("headroom", math.inf) >= 1.9


def test_compare_names_the_first_element():
    step = content([1, 2], [5, 9])
    out = [x.float() for x in truth(step).out]
    out[1][1, 4, 7] += 1.0
    with pytest.raises(CaseFailure, match=r"request 1 .*\n.*row 1, head 4, dim 7 \(position 8\)"):
        compare(step, Produced(out, None))


def test_empty_rows_must_be_exactly_zero():
    step = content([3], [2])
    out = [x.float() for x in truth(step).out]
    out[0][0, 0, 0] = 1e-12
    with pytest.raises(CaseFailure, match="allowed error 0"):
        compare(step, Produced(out, None))


@pytest.mark.parametrize(
    ("options", "rules", "words"),
    [
        ({}, {"bottom_right": False}, "top-left causal"),
        ({"window": (3, None)}, {"left_shift": 1}, "one key too wide"),
        ({"softcap": 1.0}, {"use_softcap": False}, "softcap is ignored"),
        ({"sinks": True}, {"sinks": 2}, "twice"),
        ({"return_lse": True}, {"lse_base": 2.0}, r"log2\(e\)"),
        ({}, {"interleaved_heads": True}, "h % Hkv"),
        ({"alibi": True}, {"alibi_sign": -1}, "wrong sign"),
    ],
)
def test_guesses(options, rules, words):
    step = content([3, 1], [11, 8], **options)
    wrong = truth(step, dataclasses.replace(RULES, **rules))
    lse = [x.float() for x in wrong.lse] if step.spec.return_lse else None
    with pytest.raises(CaseFailure, match=f"looks like this: .*{words}"):
        compare(step, Produced([x.float() for x in wrong.out], lse))


def test_no_guess_for_an_unknown_pattern_and_a_word_about_nan():
    step = content([3, 1], [11, 8])
    assert guess(step, [x + 1 for x in truth(step).out], None, 1e-4) == ""
    spoilt = [x.float() for x in truth(step).out]
    spoilt[0][0, 0, 0] = float("nan")
    assert "NaN" in guess(step, spoilt, None, 1e-4)


def test_needs_refuses_inputs_without_power():
    step = content([1], [3])
    with pytest.raises(AssertionError, match="cannot tell"):
        needs(step, dataclasses.replace(RULES, use_window=False))
    needs(step, dataclasses.replace(RULES, use_scale=False))
