"""AttentionSpec, Limits, the KV footprint."""

import dataclasses
import math

import pytest
import torch

import pagedattn as pa
from pagedattn.capabilities import Capabilities
from pagedattn.cli.spec_options import parse_spec


def make(**changes: object) -> pa.AttentionSpec:
    fields: dict[str, object] = {
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 64,
        "block_size": 16,
        "dtype": torch.bfloat16,
        "scale": 0.125,
    }
    return pa.AttentionSpec(**(fields | changes))  # type: ignore[arg-type]


def test_defaults_follow_the_query() -> None:
    spec = make()
    assert (spec.head_dim_v, spec.kv_dtype, spec.out_dtype) == (64, torch.bfloat16, torch.bfloat16)
    assert spec.group_size == 4


def test_normal_form_makes_equal_specs_equal() -> None:
    assert make(softcap=0) == make(softcap=None) == make(softcap=0.0)
    assert make(window=(7, 0)) == make(window=(7, None)) == make(window=[7, 3])
    assert hash(make(scale=1)) == hash(make(scale=1.0))
    full = make(mask=pa.Mask.FULL, window=(7, 3))
    assert full.window == (7, 3)
    assert make(window=(2**31 - 1, None)) == make() != make(window=(2**31 - 2, None))


def test_tuning_key_ignores_the_scale_only() -> None:
    assert make(scale=0.5).tuning_key == make(scale=0.1).tuning_key
    assert make(softcap=5.0).tuning_key != make().tuning_key


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, ""),
        ({"scale": 0.5}, "scale=0.5"),
        ({"window": (4095, None)}, "window=4095,-"),
        ({"mask": pa.Mask.FULL, "window": (None, 2)}, "mask=FULL window=-,2"),
        (
            {"softcap": 50, "sinks": True, "max_query_len": 1},
            "softcap=50.0 sinks=True max_query_len=1",
        ),
        (
            {"kv_dtype": torch.float8_e4m3fn, "kv_quant": pa.KVQuant.PER_HEAD},
            "kv_dtype=float8_e4m3fn kv_quant=PER_HEAD",
        ),
    ],
)
def test_a_spec_is_shown_as_the_command_line_reads_it(
    changes: dict[str, object], shown: str
) -> None:
    spec = make(**changes)
    shape = "num_heads=8 num_kv_heads=2 head_dim=64 block_size=16 dtype=bfloat16"
    assert str(spec) == f"{shape} {shown}".rstrip()
    assert parse_spec(str(spec).split()) == spec


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_heads": 7}, ValueError, "num_heads=7 is not a multiple"),
        ({"num_heads": 0}, ValueError, "num_heads=0"),
        ({"block_size": 1.5}, TypeError, "block_size=1.5"),
        ({"head_dim": True}, TypeError, "head_dim=True"),
        ({"scale": math.nan}, ValueError, "scale=nan"),
        ({"scale": None}, TypeError, "scale=None"),
        ({"softcap": -1.0}, ValueError, "softcap=-1.0"),
        ({"softcap": math.inf}, ValueError, "softcap=inf"),
        ({"softcap": math.nan}, ValueError, "softcap=nan"),
        ({"window": (-1, None)}, ValueError, "window left=-1"),
        ({"window": (1, -1)}, ValueError, "window right=-1"),
        ({"window": 5}, TypeError, "window=5"),
        ({"dtype": torch.int32}, ValueError, "dtype=torch.int32"),
        ({"dtype": "bfloat16"}, TypeError, "dtype='bfloat16'"),
        ({"kv_dtype": torch.int8}, ValueError, "kv_quant=NONE"),
        ({"kv_quant": pa.KVQuant.PER_HEAD}, ValueError, "8-bit if and only if"),
        ({"layout": "NHD"}, TypeError, "layout='NHD'"),
        ({"sinks": 1}, TypeError, "sinks=1"),
        ({"max_query_len": 0}, ValueError, "max_query_len=0"),
        ({"shared_kv": True, "head_dim_v": 65}, ValueError, "head_dim_v=65"),
    ],
)
def test_nonsense_is_refused(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(**changes)


def test_scale_has_no_default() -> None:
    with pytest.raises(TypeError, match="scale"):
        pa.AttentionSpec(  # type: ignore[call-arg]
            num_heads=1, num_kv_heads=1, head_dim=8, block_size=1, dtype=torch.float32
        )


def test_every_spec_field_has_a_capability_row() -> None:
    rows = {field.name for field in dataclasses.fields(Capabilities)}
    fields = {field.name for field in dataclasses.fields(pa.AttentionSpec)}
    assert fields - rows == {"scale"}  # any finite scale is served
    assert rows - fields == {"device", "group_size"}


@pytest.mark.parametrize("field", ["max_requests", "max_tokens", "max_seq_len", "num_blocks"])
def test_limits_are_positive(field: str) -> None:
    good = {"max_requests": 1, "max_tokens": 1, "max_seq_len": 1, "num_blocks": 1}
    with pytest.raises(ValueError, match=f"{field}=0"):
        pa.Limits(**(good | {field: 0}))


LLAMA2_70B = {"num_layers": 80, "head_dim": 128, "dtype": torch.float16}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({**LLAMA2_70B, "num_kv_heads": 64, "batch": 32, "context": 4096}, 343_597_383_680),
        ({**LLAMA2_70B, "num_kv_heads": 8, "batch": 32, "context": 4096}, 42_949_672_960),
        (
            {  # DeepSeek's absorbed MLA: one shared head of 576, values are its first 512
                "num_layers": 61,
                "num_kv_heads": 1,
                "head_dim": 576,
                "head_dim_v": 512,
                "shared_kv": True,
                "dtype": torch.bfloat16,
                "batch": 1,
                "context": 1,
            },
            61 * 576 * 2,
        ),
        (
            {  # whole blocks, and one float32 scale per token and head for K and for V
                "num_layers": 2,
                "num_kv_heads": 3,
                "head_dim": 8,
                "dtype": torch.int8,
                "kv_quant": pa.KVQuant.PER_TOKEN_HEAD,
                "batch": 2,
                "context": 17,
                "block_size": 16,
            },
            2 * (2 * 32 * 3 * 16 + 2 * 2 * 32 * 3 * 4),
        ),
    ],
)
def test_kv_footprint(model: dict[str, object], expected: int) -> None:
    assert pa.kv_cache_bytes(**model) == expected  # type: ignore[arg-type]


def test_footprint_equals_what_is_allocated() -> None:
    for quant, dtype in ((pa.KVQuant.NONE, torch.bfloat16), (pa.KVQuant.PER_HEAD, torch.int8)):
        spec = make(kv_quant=quant, kv_dtype=dtype, head_dim_v=32)
        cache = pa.KVCache.allocate(spec, 5, "cpu")
        tensors = [t for t in (cache.k, cache.v, cache.k_scale, cache.v_scale) if t is not None]
        assert sum(t.numel() * t.itemsize for t in tensors) == pa.kv_cache_bytes(
            num_layers=1,
            num_kv_heads=2,
            head_dim=64,
            head_dim_v=32,
            dtype=dtype,
            kv_quant=quant,
            batch=5,
            context=16,
        )
