"""A tiny model for the engine's tests, and the same model without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagedattn.allocator import BlockAllocator
from pagedattn.engine import LayerAttention, ModelRunner
from pagedattn.spec import AttentionSpec

VOCAB, HEADS, KV_HEADS, DIM, WIDTH = 31, 4, 2, 8, 16
LAYERS = ((None, 0.5), (4, 0.3))  # (left window, scale): two ops, one of them with a window


class TinyModel(ModelRunner):
    """Two layers of random weights whose next token depends on every earlier one.

    seen  per step, the positions that came in
    fail  raise when this many steps have run
    """

    def __init__(self, *, max_model_len: int = 512, eos: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(7)

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.device = torch.device("cpu")
        self.vocab_size, self.max_model_len = VOCAB, max_model_len
        self.eos_token_ids = frozenset(eos)
        self.embed, self.place = weight(VOCAB, WIDTH), weight(max_model_len, WIDTH)
        self.q = weight(2, WIDTH, HEADS * DIM) / 4
        self.kv = weight(2, 2, WIDTH, KV_HEADS * DIM) / 4
        self.out = weight(2, HEADS * DIM, WIDTH) / 4
        self.head = weight(WIDTH, VOCAB)
        self.seen: list[list[int]] = []
        self.fail: int | None = None

    def layer_specs(self, block_size: int) -> list[AttentionSpec]:
        return [
            AttentionSpec(
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                head_dim=DIM,
                block_size=block_size,
                dtype=torch.float32,
                scale=scale,
                window=(left, None),
            )
            for left, scale in LAYERS
        ]

    def forward(
        self, input_ids: Tensor, positions: Tensor, attention: LayerAttention, logits_rows: Tensor
    ) -> Tensor:
        self.seen.append(positions.tolist())
        x = self.embed[input_ids] + self.place[positions]
        for layer in range(2):
            if self.fail is not None and len(self.seen) > self.fail and layer == 1:
                raise RuntimeError("the model broke")
            q, k, v = self._project(layer, x)
            x = torch.tanh(x + attention(layer, q, k, v).flatten(1) @ self.out[layer])
        return (x @ self.head)[logits_rows]

    def _project(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = (x @ self.kv[layer, i] for i in range(2))
        q = x @ self.q[layer]
        return (
            q.unflatten(1, (HEADS, DIM)),
            k.unflatten(1, (KV_HEADS, DIM)),
            v.unflatten(1, (KV_HEADS, DIM)),
        )

    def dense_logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits f32 [V] of the token after `tokens`, from the whole sequence at once."""
        n = len(tokens)
        x = self.embed[torch.tensor(tokens)] + self.place[:n]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        for layer, (left, scale) in enumerate(LAYERS):
            q, k, v = self._project(layer, x)
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            score = torch.einsum("ihd,jhd->hij", q, k) * scale
            hidden = (distance < 0) | (distance > (n if left is None else left))
            weight = score.masked_fill(hidden, float("-inf")).softmax(-1)
            mixed = torch.einsum("hij,jhd->ihd", weight, v).flatten(1)
            x = torch.tanh(x + mixed @ self.out[layer])
        return x[-1] @ self.head

    def dense_greedy(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.dense_logits(tokens).argmax()))
        return tuple(tokens[len(prompt) :])


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + 5 * i + i * i) % VOCAB for i in range(length)]


def assert_drained(allocator: BlockAllocator) -> None:
    """Nobody holds a block and every invariant holds."""
    stats = allocator.stats()
    assert (stats.live, stats.reserved) == (0, 0)
    assert stats.free + stats.reclaimable == stats.total
    assert allocator.check() == []
