"""From a row of logits to a token.

The distribution of one token, in float64, in this order:

    p = softmax(logits / temperature)
    top_k   keep the k most probable tokens; among equals the lower id is kept
    top_p   of those, renormalised, keep the shortest run of most probable tokens whose
            probabilities add up to at least top_p; always one at least
    min_p   of those, keep tokens with p >= min_p * (largest p)

then one uniform number of the request's own generator picks from what is kept, renormalised. A
request thus draws the same tokens whatever else runs beside it and however often it is preempted.
temperature 0 takes the most probable token and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.errors import EngineError

__all__ = ["SamplingParams", "check_logits", "distribution", "make_generator", "sample"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is continued. Raises TypeError or ValueError naming the field.

    max_new_tokens  tokens to generate at most, >= 1
    temperature     0 = greedy, whatever the fields below; else the logits are divided by it
    top_k           None or >= 1         top_p   None or in (0, 1]       min_p  None or in [0, 1]
    seed            None = another text every time; equal seeds give equal texts
    stop_token_ids  tokens that end the text, beside the model's own
    ignore_eos      the model's own end-of-text tokens do not end it
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require_int("max_new_tokens", self.max_new_tokens, 1)
        if self.top_k is not None:
            _require_int("top_k", self.top_k, 1, "None turns it off")
        if self.seed is not None:
            _require_int("seed", self.seed, 0, "None draws another seed every time")
            if self.seed >= 2**63:
                raise ValueError(f"seed={self.seed} does not fit 63 bits")
        _require_number("temperature", self.temperature)
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is greedy")
        for name, value, zero in (("top_p", self.top_p, False), ("min_p", self.min_p, True)):
            if value is None:
                continue
            _require_number(name, value)
            if not 0 <= value <= 1 or (value == 0 and not zero):
                raise ValueError(f"{name}={value} is not in {'[' if zero else '('}0, 1]")
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        for token in self.stop_token_ids:
            _require_int("stop_token_ids", token, 0)
        if not isinstance(self.ignore_eos, bool):
            raise TypeError(f"ignore_eos={self.ignore_eos!r} is not a bool")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def make_generator(params: SamplingParams) -> torch.Generator | None:
    """A request's own source of randomness, on the CPU; None when it draws nothing."""
    if params.greedy:
        return None
    generator = torch.Generator()
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


def distribution(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """What may be drawn: (token ids i64 [m], probabilities f64 [m]), most probable first.

    logits [V]; params.temperature > 0."""
    scaled = logits.detach().to("cpu", torch.float64)
    scaled = (scaled - scaled.max()) / params.temperature  # the difference first: no overflow
    weight, token = torch.sort(torch.softmax(scaled, 0), descending=True, stable=True)
    if params.top_k is not None:
        weight = weight[: params.top_k]
    if params.top_p is not None:
        before = (weight.cumsum(0) - weight) / weight.sum()  # what more probable tokens add up to
        keep = int((before < params.top_p).sum())
        weight = weight[: max(keep, 1)]
    if params.min_p is not None:
        weight = weight[: int((weight >= params.min_p * weight[0]).sum())]
    return token[: len(weight)], weight / weight.sum()


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator | None],
) -> list[int]:
    """One token per row of logits f32 [n, V], each by its own params and generator.

    Advances each generator by one draw."""
    tokens: list[int] = logits.argmax(-1).tolist()
    for row, (how, generator) in enumerate(zip(params, generators, strict=True)):
        if how.greedy:
            continue
        token, probability = distribution(logits[row], how)
        draw = torch.rand((), generator=generator, dtype=torch.float64)
        picked = int(torch.searchsorted(probability.cumsum(0), draw, right=True))
        tokens[row] = int(token[min(picked, len(token) - 1)])  # cumsum may end just below 1
    return tokens


def check_logits(logits: Tensor, rows: int, vocab_size: int) -> None:
    """EngineError unless logits is [rows, vocab_size] and each row has a finite maximum. Waits for
    the device."""
    if not isinstance(logits, Tensor):
        raise EngineError(f"the model returned {type(logits).__name__} for logits, not a Tensor")
    if logits.shape != (rows, vocab_size):
        raise EngineError(
            f"the model returned logits of shape {list(logits.shape)}; expected "
            f"[{rows}, {vocab_size}], one row per entry of logits_rows"
        )
    if rows == 0:
        return
    wrong = ~torch.isfinite(logits.amax(-1))  # NaN anywhere in a row makes its maximum NaN
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise EngineError(
            f"row {row} of the model's logits has no finite maximum (NaN or infinite values); "
            "judge the backend with `pagedattn check`, and mind the range of the model's dtype"
        )


def _require_int(name: str, value: object, at_least: int, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an int")
    if value < at_least:
        raise ValueError(f"{name}={value} is below {at_least}" + (f"; {hint}" if hint else ""))


def _require_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value} is not finite")
