"""Hugging Face models through the engine: the same tokens as their own generate()."""

import pytest
import torch
from pagedattn_transformers import load_model
from pagedattn_transformers.attention import NAME
from transformers_support import MODELS, NEW, PROMPTS, make, theirs

import pagedattn as pa


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
