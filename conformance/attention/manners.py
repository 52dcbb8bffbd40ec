"""How a backend behaves as a guest: what it says of itself can be printed, it takes the scratch and
the Limits that it is given, and it leaves the process as it was."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import KVQuant, Limits, Mask

__all__ = ["CASES"]

SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"softcap": 3.0, "return_lse": True},
    {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD},
    {"mask": Mask.TREE, "sinks": True},
    {"head_dim": 24, "block_size": 11},
    {"max_query_len": 1, "window": (5, None)},
)


def _described(subject: AttentionSubject, seed: int) -> None:
    """describe() and tunables() answer for every spec, served or not: JSON with names, and at least
    one int for each knob; the same when asked again."""
    backend, info = subject.backend, subject.info
    for wanted in SPECS:
        spec = subject.spec(wanted)
        for name in ("describe", "tunables"):
            ask = getattr(backend, name)
            try:
                said, again = ask(spec, info), ask(spec, info)
                json.dumps(dict(said))
            except Exception as error:
                raise CaseFailure(
                    f"{name}() for {spec}: {type(error).__name__}: {error}"
                ) from error
            names = isinstance(said, Mapping) and all(isinstance(key, str) for key in said)
            if not names or said != again:
                raise CaseFailure(f"{name}() must be a mapping with names, and stay: {said!r}")
        for knob, values in backend.tunables(spec, info).items():
            if not values or any(type(value) is not int for value in values):
                raise CaseFailure(f"tunables()[{knob!r}] must list ints, not {values!r}")


def _workspace(subject: AttentionSubject, seed: int) -> Measures:
    """The scratch may be larger than asked for, and need not begin on more than 16 bytes."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    subject.open(spec, step.limits)
    needed = subject.backend.workspace_bytes(spec, step.limits, subject.info)
    if type(needed) is not int or needed < 0:
        raise CaseFailure(f"workspace_bytes() must be an int of at least 0, not {needed!r}")
    memory = torch.full((needed + 400,), 255, dtype=torch.uint8, device=subject.device)
    at = 16 + -memory.data_ptr() % 256
    op = subject.backend.open(
        spec, step.limits, device=subject.device, workspace=memory[at : at + needed + 100]
    )
    return compare(content, execute(op, step))


def _limits(subject: AttentionSubject, seed: int) -> Measures:
    """Limits far beyond the step: blocks and lengths up to the largest ints of 32 bits."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    large = Limits(2048, 4096, 2**31 - 1, 2**31 - 1)
    return compare(content, execute(subject.open(spec, large), step))


def _state() -> dict[str, object]:
    """What a call could change for everybody else in the process."""
    numbers = torch.random.get_rng_state()
    return {
        "torch's random numbers": bytes(numbers.numpy().tobytes()),
        "Python's random numbers": random.getstate(),
        "the default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "TF32 in matmuls": torch.backends.cuda.matmul.allow_tf32,
        "matmul precision": torch.get_float32_matmul_precision(),
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
    }


def _guest(subject: AttentionSubject, seed: int) -> Measures:
    """open(), plan(), write() and run() change nothing for others in the process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8191)
        torch.rand(3)  # a state that no seed gives
        before = _state()
        spec = subject.spec()
        content = Content.random(spec, *lengths("decode", spec.block_size), seed)
        step = place(content, subject.device, Placing(seed=seed))
        op = subject.open(spec, step.limits)
        produced = execute(op, step)
        k, v = (x[:1, 0].clone() for x in (step.cache.k, step.cache.v))
        skipped = torch.full((1,), -1, dtype=torch.int64, device=subject.device)
        op.write(k.to(spec.dtype), v.to(spec.dtype), step.cache, skipped)
        after = _state()
    for name, value in after.items():
        if value != before[name]:
            raise CaseFailure(f"{name} changed; a call must leave the process as it was")
    return compare(content, produced)


def _autocast(subject: AttentionSubject, seed: int) -> Measures:
    """Under torch.autocast the spec's dtypes hold all the same."""
    spec = subject.spec({"dtype": torch.float32}, rows=rows_of("mixed"))
    content = Content.random(spec, *lengths("mixed", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)
    with torch.autocast(subject.device.type, dtype=torch.bfloat16):
        produced = execute(op, step)
    return compare(content, produced)


def _cases() -> list[Case]:
    return [
        attention_case(id, rule, judge_it, core=core)
        for id, rule, judge_it, core in (
            ("honesty/described", "refusals", _described, True),
            ("honesty/workspace-anywhere", "arguments", _workspace, True),
            ("honesty/large-limits", "arguments", _limits, True),
            ("launch/leaves-all-as-it-was", "guests", _guest, True),
            ("launch/autocast", "guests", _autocast, False),
        )
    ]


CASES = _cases()
