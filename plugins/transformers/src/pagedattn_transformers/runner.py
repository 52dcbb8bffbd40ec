"""A Hugging Face causal language model as a ModelRunner. The model code is theirs, unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from pagedattn.engine import LayerAttention, ModelRunner
from pagedattn.errors import InvalidRequest
from pagedattn.spec import AttentionSpec
from pagedattn_transformers.attention import NAME, Layer, Probe, Step, answering
from pagedattn_transformers.masks import refuse

__all__ = ["TransformersRunner"]


class TransformersRunner(ModelRunner):
    """Wraps a model in evaluation mode. Outside of forward() the model is as it was: its attention
    implementation is swapped for the time of a step.

    One token is sent through the model to see what each layer asks of attention. Raises
    Unsupported when it is something that a paged cache or the attention contract lacks."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        config = model.config.get_text_config()
        if model.training:
            raise refuse("training", True, "evaluation mode", "call model.eval()")
        if getattr(model.config, "is_encoder_decoder", False):
            raise refuse("is_encoder_decoder", True, "decoder-only models")
        if getattr(model, "_is_stateful", False):
            raise refuse(
                "state", type(model).__name__, "models whose only state is keys and values"
            )
        self.model = model
        self.tokenizer: Any = tokenizer  # what its calls return depends on their arguments
        self.device = model.device
        self.vocab_size = config.vocab_size
        self.eos_token_ids = _eos(model)
        self.max_model_len = _positions(config)
        self._configs = _configs(model)
        self._row_choice = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._layers = self._probe(config.num_hidden_layers)

    def layer_specs(self, block_size: int) -> Sequence[AttentionSpec]:
        return [layer.spec(block_size) for layer in self._layers]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        logits_rows: Tensor,
    ) -> Tensor:
        with answering(Step(self._layers, attention)):
            return self._call(input_ids, positions, logits_rows)

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        if self.tokenizer is None:
            return super().encode(text)
        if not chat:
            return list(self.tokenizer(text)["input_ids"])
        if not self.tokenizer.chat_template:
            raise InvalidRequest("this model's tokenizer has no chat template; use chat=False")
        message = [{"role": "user", "content": text}]
        encoded = self.tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str | None:
        if self.tokenizer is None:
            return None
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _call(self, input_ids: Tensor, positions: Tensor, logits_rows: Tensor) -> Tensor:
        """The model on one row of tokens [T]; logits f32 [n, V] of the wanted rows.

        The mask of ones keeps transformers from guessing, from the positions, where one sequence
        ends and the next begins; no mask is built from it."""
        wanted: dict[str, Any] = {"logits_to_keep": logits_rows} if self._row_choice else {}
        with self._attention_swapped():
            output = self.model(
                input_ids=input_ids[None],
                position_ids=positions[None],
                attention_mask=torch.ones_like(input_ids)[None],
                use_cache=False,
                return_dict=True,
                **wanted,
            )
        logits: Tensor = output.logits[0]
        if not self._row_choice:
            logits = logits[logits_rows]
        return logits.float()

    def _probe(self, expected: int) -> list[Layer]:
        probe, token = Probe(), torch.zeros(1, dtype=torch.int64, device=self.device)
        with torch.inference_mode(), answering(probe):
            self._call(token, token, token)
        if sorted(probe.layers) != list(range(expected)):
            raise refuse(
                "layers",
                f"{type(self.model).__name__}: {len(probe.layers)} of {expected} layers call "
                "transformers' attention interface",
                "models whose layers all do",
                "layers with another kind of state, or of an old model, cannot run here",
            )
        return [probe.layers[i] for i in range(expected)]

    @contextmanager
    def _attention_swapped(self) -> Iterator[None]:
        before = [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            yield
        finally:
            for config, implementation in zip(self._configs, before, strict=True):
                config._attn_implementation = implementation


def _configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config that a module looks its attention up in; outer ones first, since setting one
    sets its sub-configs too."""
    found: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            found.setdefault(id(config), config)
    return list(found.values())


def _eos(model: PreTrainedModel) -> frozenset[int]:
    for source in (model.generation_config, model.config.get_text_config()):
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            return frozenset([eos] if isinstance(eos, int) else eos)
    return frozenset()


def _positions(config: PreTrainedConfig) -> int:
    """Positions that the model can tell apart, and, where its rotary angles depend on the longest
    request of a batch, the length up to which they do not."""
    limit = getattr(config, "max_position_embeddings", None) or 2**31 - 1
    rope = getattr(config, "rope_parameters", None) or {}
    groups = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for group in groups:
        if group.get("rope_type") in ("dynamic", "longrope"):
            original = group.get("original_max_position_embeddings") or limit
            limit = min(limit, int(original))
    return int(limit)
