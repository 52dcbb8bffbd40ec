"""Tiny Hugging Face models, and what their own generate() says."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

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
