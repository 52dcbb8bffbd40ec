"""ModelRunner: what an engine needs of a model. The model computes everything but attention over
the cache, which it asks the engine for, layer by layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pagedattn.errors import InvalidRequest
from pagedattn.spec import AttentionSpec

__all__ = ["LayerAttention", "ModelRunner"]


class LayerAttention(Protocol):
    """Attention of one step, supplied by the engine."""

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        *,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        """Store k and v of the step's tokens in the cache of `layer`, then attend to the cache.

        q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv] (None when the spec says shared_kv);
        sinks, alibi_slopes f32 [Hq], given iff the layer's spec says so. Returns [T, Hq, Dv].
        Each layer is called once a step, in any order."""
        ...


class ModelRunner(ABC):
    """A language model that keeps no keys and values of its own.

    device         where its weights lie; the engine makes its tensors there
    vocab_size     V; token ids lie in [0, V)
    eos_token_ids  tokens that end a text unless SamplingParams.ignore_eos
    max_model_len  positions that the model can tell apart; longer requests are refused
    """

    device: torch.device
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int

    @abstractmethod
    def layer_specs(self, block_size: int) -> Sequence[AttentionSpec]:
        """One spec per attention layer, for a cache of `block_size`. Equal specs share an op."""

    @abstractmethod
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        logits_rows: Tensor,
    ) -> Tensor:
        """One step over tokens of several requests, laid end to end.

        input_ids, positions i64 [T]; logits_rows i64 [n], rows of T whose logits are wanted
        (n may be 0). Returns logits f32 [n, V]. Called under torch.inference_mode()."""

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of `text`; with `chat`, of a user's message in the model's chat template."""
        raise InvalidRequest(
            f"{type(self).__name__} has no tokenizer; give prompts as sequences of token ids"
        )

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """The text of these tokens without special ones; None without a tokenizer."""
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Give back what the runner holds. The engine calls it for a model that it loaded."""
