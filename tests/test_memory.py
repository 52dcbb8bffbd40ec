"""`pagedattn memory`: presets, config.json, scales, and what fits."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pagedattn.cli import build_app
from pagedattn.presets import PRESETS, ModelShape, shape_of_config

LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "float16",
}
DEEPSEEK = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def memory(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(build_app(), ["memory", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["memory", *arguments])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("llama2-7b", 2 * 32 * 32 * 128 * 2),
        ("llama2-70b", 2 * 80 * 8 * 128 * 2),
        ("llama3-8b", 131_072),
        ("llama3-70b", 327_680),
        ("mistral-7b", 131_072),
        ("qwen3-8b", 147_456),
        ("smollm2-135m", 23_040),
        ("deepseek-v3", 70_272),
    ],
)
def test_presets(model: str, per_token: int) -> None:
    found = memory("--model", model, "--batch", "2", "--context", "4k")
    assert found["bytes_per_token"] == per_token
    assert found["bytes"] == 2 * 4096 * per_token
    assert found["blocks"] == 512


def test_every_preset_is_tested() -> None:
    (mark,) = test_presets.pytestmark
    assert {row[0] for row in mark.args[1]} == set(PRESETS)


def test_options_overrule_the_model() -> None:
    found = memory("--model", "llama2-70b", "--kv-heads", "64", "--batch", "32")
    assert found["bytes"] == 343_597_383_680
    assert memory("--model", "llama3-8b", "--dtype", "fp8")["bytes_per_token"] == 65_536
    narrow = memory("--model", "llama3-8b", "--head-dim", "64")
    assert (narrow["head_dim"], narrow["head_dim_v"]) == (64, 64)


def test_config_json_by_file_and_by_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        found = memory("--model", str(path))
        assert found["bytes_per_token"] == 131_072
        assert found["dtype"] == "float16"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"layers": 32, "kv_heads": 8, "head_dim": 128, "head_dim_v": 128}),
        ({"head_dim": 256}, {"head_dim": 256, "head_dim_v": 256}),
        ({"head_dim": None, "num_key_value_heads": None}, {"kv_heads": 32, "head_dim": 128}),
        ({"dtype": "float32"}, {"dtype": "float32"}),
        ({"torch_dtype": None}, {"dtype": "bfloat16"}),
        ({"torch_dtype": "torch.float16"}, {"dtype": "float16"}),
        ({"sliding_window": 4096, "use_sliding_window": False}, {"note": ""}),
    ],
)
def test_shape_of_config(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    shape = shape_of_config({**LLAMA, **changes}, "x")
    assert {key: getattr(shape, key) for key in expected} == expected


def test_mla_is_cached_absorbed() -> None:
    assert shape_of_config(DEEPSEEK, "x") == PRESETS["deepseek-v3"]
    assert shape_of_config({"text_config": DEEPSEEK}, "x") == PRESETS["deepseek-v3"]


@pytest.mark.parametrize(
    "window", [{"sliding_window": 4096}, {"layer_types": ["sliding_attention"] * 32}]
)
def test_windowed_layers_are_said_to_be_counted_in_full(window: dict[str, Any]) -> None:
    assert "upper bound" in shape_of_config({**LLAMA, **window}, "x").note


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "x: expected an object of keys, not list"),
        ({}, "x: there is no key num_hidden_layers"),
        ({"num_hidden_layers": 2}, "x: there is no key num_attention_heads"),
        ({**LLAMA, "hidden_size": None}, "there is no key hidden_size, nor head_dim"),
        ({**LLAMA, "hidden_size": 4095}, "hidden_size=4095 is not a multiple"),
        ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers='32' is not a positive integer"),
        ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads=0 is not a positive"),
        ({**DEEPSEEK, "qk_rope_head_dim": None}, "there is no key qk_rope_head_dim"),
        ({**LLAMA, "layer_types": 5}, "layer_types is no list of num_hidden_layers=32 kinds"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types is no list of num_hidden"),
        ({**LLAMA, "layer_types": [["x"]] * 32}, "layer_types has"),
        (
            {**LLAMA, "layer_types": ["linear_attention"] * 32},
            "linear_attention, whose memory is no KV",
        ),
        ({"text_config": {}}, "x, text_config: there is no key num_hidden_layers"),
    ],
)
def test_a_config_that_does_not_tell(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of_config(config, "x")


def test_scales_are_counted() -> None:
    layer = ["--layers", "2", "--kv-heads", "4", "--head-dim", "64", "--context", "16"]
    assert memory(*layer, "--dtype", "fp8")["bytes"] == 2 * 16 * 4 * 128
    for quant, scales in (("per_tensor", 1), ("per_head", 4), ("per_token_head", 64)):
        found = memory(*layer, "--kv-quant", quant)
        assert found["bytes"] == 2 * 16 * 4 * 128 + 2 * 2 * 4 * scales
        assert found["dtype"] == "float8_e4m3fn"
    assert found["bytes_per_token"] == 2 * 4 * 128 + 2 * 2 * 4 * 4
    assert memory(*layer, "--kv-quant", "per_head")["bytes_per_block"] == 2 * 16 * 4 * 128


def test_what_fits() -> None:
    found = memory("--model", "llama3-8b", "--memory", "80GiB", "--context", "8k")
    assert (found["largest_batch"], found["largest_context"]) == (80, 655_360)
    found = memory("--model", "llama3-8b", "--memory", "80GiB", "--context", "8193")
    assert (found["largest_batch"], found["largest_context"]) == (79, 655_360)
    found = memory("--model", "llama3-8b", "--memory", "1.5GiB", "--batch", "3")
    assert (found["memory"], found["largest_context"]) == (1_610_612_736, 4096)
    found = memory("--model", "llama3-8b", "--memory", "1MiB")
    assert (found["largest_batch"], found["largest_context"]) == (0, 0)
    found = memory("--model", "llama3-8b", "--memory", "16MiB", "--kv-quant", "per_tensor")
    assert found["largest_context"] == 240  # the scales do not fit beside 256 tokens


def test_the_table_says_the_same() -> None:
    arguments = ["memory", "--model", "llama3-8b", "--memory", "80GiB", "--context", "8k"]
    text = CliRunner().invoke(build_app(), arguments).output
    assert "80 GiB hold a batch of 80 at a context of 8,192 tokens" in text
    assert "80 GiB hold a context of 655,360 tokens at a batch of 1" in text
    assert "1,073,741,824" in text


def test_the_note_is_printed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "sliding_window": 4096}))
    result = CliRunner().invoke(build_app(), ["memory", "--model", str(tmp_path)])
    assert "note: layers with a sliding window are counted in full" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing --layers, --kv-heads, --head-dim; give them, or --model"),
        (["--layers", "2", "--head-dim", "64"], "missing --kv-heads; give them, or --model"),
        (["--model", "llama3-9b"], "no model preset named 'llama3-9b'; did you mean 'llama3-8b'?"),
        (["--model", "nowhere/config.json"], "no such file: nowhere/config.json"),
        (["--model", "llama3-8b", "--memory", "much"], "--memory 'much': expected something like"),
        (["--model", "llama3-8b", "--memory", "-1"], "--memory '-1': expected something like"),
        (["--model", "llama3-8b", "--memory", "0"], "--memory '0' is less than a byte"),
        (["--model", "llama3-8b", "--memory", "٣GiB"], "expected something like"),
        (["--model", "llama3-8b", "--batch", "0"], "--batch is 0; at least 1 is required"),
        (["--model", "llama3-8b", "--batch", "-1"], "--batch is -1; at least 1 is required"),
        (["--model", "llama3-8b", "--context", "0"], "--context is 0; at least 1 is required"),
        (["--model", "llama3-8b", "--context", "9" * 5000], "is not a size"),
        (["--model", "llama3-8b", "--context", "\uff14"], "is not a size"),
        (["--model", "llama3-8b", "--block-size", "0"], "block_size=0 is below 1"),
        (["--model", "llama3-8b", "--layers", "-2"], "num_layers=-2 is below 1"),
        (["--model", "llama3-8b", "--head-dim-v", "0"], "head_dim_v=0 is below 1"),
        (["--model", "llama3-8b", "--shared-kv", "--head-dim-v", "200"], "head_dim_v=200 > head"),
        (["--model", "llama3-8b", "--dtype", ""], "'' is not a dtype"),
        *(
            (["--model", "llama3-8b", "--dtype", dtype], "kept in floating point or int8")
            for dtype in ("bool", "int64", "complex64", "quint8", "uint8")
        ),
        (["--model", "llama3-8b", "--kv-quant", "some"], "known are none, per_tensor"),
        (
            ["--model", "llama3-8b", "--kv-quant", "per_head", "--dtype", "fp16"],
            "needs an 8-bit --dtype, not torch.float16",
        ),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read as JSON" in refused("--model", str(tmp_path))


def test_shapes_are_values() -> None:
    shape = ModelShape(layers=1, kv_heads=2, head_dim=3, head_dim_v=4)
    assert (shape.shared_kv, shape.dtype, shape.note) == (False, "bfloat16", "")
