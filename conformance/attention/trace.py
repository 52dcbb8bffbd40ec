"""An allocator and a backend at work together: tables, slots and copies from the one, write() and
run() by the other, every step against a dense oracle that knows neither.

The keys and values of a token depend on all tokens before it, as in a model, so that a prefix hit
is right only when the blocks hold what this very prefix would have written.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pagedattn.allocator import AllocatorCapabilities, BlockAllocator, CopyOp, Prefix
from pagedattn.attention import AttentionOp
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import INT_MAX, Guard, Placing
from pagedattn.conformance.attention.pools import make_cache
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import CaseFailure, Declined, NotRun
from pagedattn.copies import copy_blocks
from pagedattn.errors import OutOfBlocks
from pagedattn.spec import AttentionSpec, Limits

__all__ = ["Trace", "run_trace"]

MOST_SEQUENCES = 4
CHUNK = 6


@dataclass
class _Sequence:
    """tokens whose KV is in the cache, and those of the prompt that are still to come."""

    namespace: bytes
    tokens: list[int]
    prompt: list[int] = field(default_factory=list)


class Trace:
    """One pool of one layer, poisoned, an allocator over it and an op that reads it."""

    def __init__(
        self, subject: AttentionSubject, spec: AttentionSpec, alloc: BlockAllocator, longest: int
    ) -> None:
        self.spec, self.alloc, self.device = spec, alloc, subject.device
        self.releases = alloc.capabilities().window and spec.window[0] is not None
        self.guards: list[Guard] = []
        pool = alloc.num_blocks
        self.cache = make_cache(spec, pool, subject.device, Placing(), self.guards)
        limits = Limits(MOST_SEQUENCES, MOST_SEQUENCES * CHUNK, longest, pool)
        self.op: AttentionOp = subject.open(spec, limits)
        self.sequences: dict[int, _Sequence] = {}
        self.measures: Measures = {}
        self.log: list[str] = []

    # -- what the allocator is asked -------------------------------------------------------------

    def open(self, seq: int, prompt: Sequence[int], namespace: bytes) -> None:
        hit = self.alloc.open(seq, prompt, namespace=namespace)
        self.log.append(f"open({seq}, {list(prompt)}, namespace={namespace!r}) hit {hit.tokens}")
        self._copy(hit.copies)
        self.sequences[seq] = _Sequence(
            namespace, list(prompt[: hit.tokens]), list(prompt[hit.tokens :])
        )

    def step(self, wants: Mapping[int, Sequence[int]]) -> None:
        """append, copy, write, attend, compare, commit: what an engine does in a step."""
        self.log.append(f"step({ {seq: list(new) for seq, new in wants.items()} })")
        grants = self.alloc.append_many({seq: len(new) for seq, new in wants.items()})
        for seq in wants:
            self._copy(grants[seq].copies)
        slots = [slot for seq in wants for slot in grants[seq].slots]
        for seq, new in wants.items():
            own = self.sequences[seq]
            own.tokens += new
            del own.prompt[: len(new)]
        self._write({seq: len(new) for seq, new in wants.items()}, slots)
        self._attend({seq: len(new) for seq, new in wants.items()}, slots)
        for seq, new in wants.items():
            self.alloc.commit(seq, new)
            self._release(seq)

    def _release(self, seq: int) -> None:
        """Blocks that no later row can see are given back."""
        left, length = self.spec.window[0], len(self.sequences[seq].tokens)
        if self.releases and left is not None and length > left:
            self.alloc.release_before(seq, length - left)

    def fork(self, parent: int, child: int) -> None:
        self.log.append(f"fork({parent}, {child})")
        self.alloc.fork(parent, child)
        own = self.sequences[parent]
        self.sequences[child] = replace(own, tokens=list(own.tokens), prompt=[])

    def truncate(self, seq: int, length: int) -> None:
        self.log.append(f"truncate({seq}, {length})")
        self.alloc.truncate(seq, length)
        del self.sequences[seq].tokens[length:]
        self.sequences[seq].prompt.clear()

    def close(self, seq: int) -> None:
        self.log.append(f"close({seq})")
        self.alloc.close(seq)
        del self.sequences[seq]

    # -- what lies in the cache ------------------------------------------------------------------

    def _copy(self, copies: Sequence[CopyOp]) -> None:
        if copies:
            self.log.append(f"copies {list(copies)}")
            copy_blocks(self.cache, self.cache, copies)

    def _write(self, counts: Mapping[int, int], slots: Sequence[int]) -> None:
        rows: dict[str, list[Tensor]] = {"k": [], "v": []}
        for seq, n in counts.items():
            k, v = self._keys(self.sequences[seq])
            rows["k"].append(k[len(k) - n :])
            rows["v"].append(v[len(v) - n :])
        k, v = (torch.cat(x).to(self.device) for x in rows.values())
        self.op.write(
            k,
            None if self.spec.shared_kv else v,
            self.cache,
            torch.tensor(slots, dtype=torch.int64, device=self.device),
        )

    def _keys(self, own: _Sequence) -> tuple[Tensor, Tensor]:
        """k [n, Hkv, D] and v [n, Hkv, Dv] of a sequence, by its tokens alone."""
        spec, state = self.spec, zlib.crc32(own.namespace)
        width = spec.head_dim + spec.head_dim_v
        rows = []
        for token in own.tokens:
            state = zlib.crc32(f"{state} {token}".encode())
            source = torch.Generator().manual_seed(state)
            rows.append(torch.randn(spec.num_kv_heads, width, generator=source))
        both = torch.stack(rows) if rows else torch.empty(0, spec.num_kv_heads, width)
        both = both.to(spec.dtype)
        k, v = both[..., : spec.head_dim], both[..., spec.head_dim :]
        return k, k[..., : spec.head_dim_v] if spec.shared_kv else v

    # -- attention -------------------------------------------------------------------------------

    def _attend(self, counts: Mapping[int, int], slots: Sequence[int]) -> None:
        spec = self.spec
        owns = [self.sequences[seq] for seq in counts]
        keys = [self._keys(own) for own in owns]
        random_q = Content.random(
            spec, list(counts.values()), [len(own.tokens) for own in owns], len(self.log)
        )
        content = random_q.storing([k.float() for k, _ in keys], [v.float() for _, v in keys])
        step = place(content, self.device, Placing())
        tables = [self.alloc.table(seq) for seq in counts]
        width = max(len(table) for table in tables) + 1
        padded = torch.full((len(tables), width), INT_MAX, dtype=torch.int32)
        for r, table in enumerate(tables):
            padded[r, : len(table)] = torch.tensor(list(table), dtype=torch.int32)
        batch = replace(
            step.batch,
            block_table=padded.to(self.device),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=self.device),
        )
        step = replace(step, cache=self.cache, batch=batch, guards=step.guards + self.guards)
        self.measures = joined(compare(content, execute(self.op, step)), self.measures)


def run_trace(
    subject: AttentionSubject,
    alloc: BlockAllocator,
    *,
    wanted: Mapping[str, Any],
    seed: int,
    steps: int = 40,
) -> Measures:
    """A walk over what the allocator offers. Raises CaseFailure with the calls that led there."""
    spec = subject.spec({"block_size": alloc.block_size, **wanted}, rows=CHUNK)
    trace = Trace(subject, spec, alloc, longest=alloc.num_blocks * alloc.block_size)
    walk = _Walk(trace, alloc.capabilities(), random.Random(seed))
    try:
        for _ in range(steps):
            walk.step()
        for seq in list(trace.sequences):
            trace.close(seq)
    except (Declined, NotRun):
        raise
    except Exception as error:
        said = str(error) if isinstance(error, CaseFailure) else f"raised {error!r}"
        calls = "\n    ".join(trace.log[-20:])
        raise CaseFailure(f"{said}\n  after these calls:\n    {calls}") from error
    return trace.measures


class _Walk:
    """Prompts meet in two stems; sequences grow in chunks, fork, are cut, and run out of blocks."""

    def __init__(self, trace: Trace, caps: AllocatorCapabilities, rng: random.Random) -> None:
        self.trace, self.caps, self.rng = trace, caps, rng
        size = trace.spec.block_size
        self.stems = [rng.choices((1, 2), k=3 * size) for _ in range(2)]

    def step(self) -> None:
        trace, rng = self.trace, self.rng
        seqs, choice = list(trace.sequences), rng.random()
        if not seqs or (len(seqs) < MOST_SEQUENCES and choice < 0.25):
            return self._open()
        seq = rng.choice(seqs)
        own = trace.sequences[seq]
        if choice < 0.70:
            return self._grow(rng.sample(seqs, rng.randint(1, len(seqs))))
        if choice < 0.80 and self.caps.fork and len(seqs) < MOST_SEQUENCES and own.tokens:
            child = self._new_id()
            trace.fork(seq, child)
            return self._grow(rng.choice(([seq], [child], [seq, child], [child, seq])))
        if choice < 0.88 and self.caps.truncate and own.tokens and not trace.releases:
            return trace.truncate(seq, rng.randint(0, len(own.tokens)))
        if choice < 0.92 and self.caps.prefix is not Prefix.NONE:
            trace.log.append("evict(1)")
            trace.alloc.evict(1)
            return None
        return trace.close(seq)

    def _new_id(self) -> int:
        return min(set(range(2 * MOST_SEQUENCES)) - set(self.trace.sequences))

    def _open(self) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)
        prompt = stem[: rng.randint(1, len(stem))] + rng.choices((1, 2), k=rng.randint(0, 2))
        try:
            self.trace.open(self._new_id(), prompt, rng.choice((b"", b"", b"n")))
        except OutOfBlocks:  # an allocator that reserves at open
            self.trace.log.append("open raised OutOfBlocks")

    def _grow(self, seqs: list[int]) -> None:
        trace, rng = self.trace, self.rng
        wants = {}
        for seq in seqs:
            left = trace.sequences[seq].prompt
            wants[seq] = left[: rng.randint(1, CHUNK)] or [rng.choice((1, 2))]
        if trace.alloc.can_append({seq: len(new) for seq, new in wants.items()}):
            trace.step(wants)
        else:
            trace.close(rng.choice(seqs))
