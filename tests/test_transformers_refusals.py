"""What Hugging Face models ask for and the engine cannot honour is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from pagedattn_transformers import load_model
from pagedattn_transformers.attention import Probe, answering, attention_function
from pagedattn_transformers.masks import CausalMask, describe_mask
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)
from transformers_support import PROMPTS, SIZES, VOCAB, make

import pagedattn as pa
from pagedattn.errors import EngineError, InvalidRequest


def test_training_mode_is_refused() -> None:
    with pytest.raises(pa.Unsupported, match="training=True"):
        load_model(make("llama").train())


def test_models_with_another_state_are_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(pa.Unsupported, match="MambaForCausalLM"):
        load_model(model)


def test_models_that_add_the_mask_themselves_are_refused() -> None:
    config = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    with pytest.raises(pa.Unsupported, match="computes with its mask"):
        load_model(model)
    assert model.config._attn_implementation == before


def test_layers_that_do_not_use_the_attention_interface_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make("llama")

    def forward(self: object, hidden_states: torch.Tensor, **_: object) -> tuple[Any, None]:
        return hidden_states, None

    layer = model.model.layers[1].self_attn
    monkeypatch.setattr(layer, "forward", forward.__get__(layer))
    with pytest.raises(pa.Unsupported, match="1 of 2 layers"):
        load_model(model)


def test_chunked_attention_is_refused() -> None:
    sizes = {**SIZES, "intermediate_size_mlp": 64, "num_local_experts": 2}
    config = transformers.Llama4TextConfig(**sizes, attention_chunk_size=8)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(pa.Unsupported, match="mask"):
        load_model(model)


def test_a_config_changed_after_wrapping_is_an_error() -> None:
    model = make("gemma2")
    engine = pa.Engine(model)
    model.model.layers[0].self_attn.scaling = 0.7
    with pytest.raises(EngineError, match=r"layer 0 asks for .*scale=0\.7"):
        engine.generate([PROMPTS[2]])
    assert engine.allocator.stats().live == 0


@pytest.mark.parametrize("window", [None, 1, 2, 5, 4096])
def test_causal_masks_are_described(window: int | None) -> None:
    function = (
        causal_mask_function if window is None else sliding_window_causal_mask_function(window)
    )
    mark = describe_mask(mask_function=function, local_size=window, q_length=3, use_vmap=False)
    assert mark == CausalMask(None if window is None else window - 1)


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64)), 8),
        (chunked_causal_mask_function(8192, torch.zeros(1, dtype=torch.int64)), 8192),
        (sliding_window_bidirectional_mask_function(8), 8),
        (sliding_window_causal_mask_function(8), None),
        (sliding_window_causal_mask_function(8), 9),
        (causal_mask_function, 8),
        (lambda b, h, q, k: q >= 0, None),
    ],
)
def test_other_masks_are_refused(function: Callable[..., Any], size: int | None) -> None:
    with pytest.raises(pa.Unsupported, match="mask"):
        describe_mask(mask_function=function, local_size=size)


def test_masks_with_a_function_of_the_model_on_top_are_refused() -> None:
    function = or_masks(causal_mask_function, lambda b, h, q, k: k >= 0)
    with pytest.raises(pa.Unsupported, match="mask"):
        describe_mask(mask_function=function, use_vmap=True)


class Module(torch.nn.Module):
    layer_idx = 0


QKV = tuple(torch.zeros(1, heads, 3, 8) for heads in (4, 2, 2))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "is_causal"),
        ({"output_attentions": True}, "output_attentions"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"head_mask": torch.ones(4)}, "head_mask"),
        ({"cu_seq_lens_q": torch.zeros(2)}, "cu_seq_lens_q"),
        ({"attention_mask": torch.zeros(1, 1, 3, 3)}, "attention_mask"),
        ({"attention_mask": None}, "attention_mask"),
        ({"attention_mask": CausalMask(7), "sliding_window": 9}, "sliding_window"),
        ({"key": torch.zeros(1, 2, 5, 8)}, "key"),
        ({"value": torch.zeros(1, 2, 3, 8, dtype=torch.float16)}, "dtype"),
        ({"module": torch.nn.Module()}, "layer_idx"),
    ],
)
def test_what_cannot_be_honoured_raises(given: dict[str, Any], code: str) -> None:
    call: dict[str, Any] = {
        "module": Module(),
        **dict(zip(("query", "key", "value"), QKV, strict=True)),
        "attention_mask": CausalMask(None),
        "position_ids": torch.arange(3),
        "output_attentions": False,
    }
    with answering(Probe()):
        out, weights = attention_function(**call)
    assert (out.shape, weights) == ((1, 3, 4, 8), None)
    with answering(Probe()), pytest.raises(pa.Unsupported) as caught:
        attention_function(**(call | given))
    assert [r.code for r in caught.value.refusals] == [code]


def test_the_attention_function_works_within_the_engine_only() -> None:
    with pytest.raises(EngineError, match="set_attn_implementation"):
        attention_function(Module(), *QKV, CausalMask(None))


def test_rotary_angles_that_depend_on_the_batch_bound_the_length() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    }
    sizes = SIZES | {"head_dim": 8, "original_max_position_embeddings": 32}
    config = transformers.Phi3Config(**sizes, rope_parameters=rope)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    assert load_model(model).max_model_len == 32
    assert load_model(make("llama")).max_model_len == 128
    with pytest.raises(InvalidRequest, match="the model has 32"):
        pa.Engine(model).submit(PROMPTS[-1])
