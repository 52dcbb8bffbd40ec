"""Two allocators behind one small face, as a scheduler uses them: ours and vLLM's cache manager.

    prepare(seq, tokens)   what is done once per prompt before the allocator is asked
    admit(seq, prompt)     find the cached prefix, take blocks for the rest, publish the full ones
    decode(seqs, token)    a slot for one more token of each sequence; full blocks are published
    branch(parent, child)  a second sequence after the parent's tokens, ready for its own next token
    finish(seq)            the blocks come back
    drain()                what changed in the cache since the last call, where events are on

vLLM is optional: peers() says why it is not there. It is used as it is installed, through the calls
that its scheduler makes, in its order: get_computed_blocks(), allocate_slots(), free(). Three
differences of the two are not made up for. Ours gives slots and copies with the blocks, there the
worker computes slots later. There hashes are computed with the request, from which content is found
by hash alone; ours compares tokens, and hashes when events are drained. There is no fork: parallel
samples are requests of their own, which find their prompt as a prefix.
"""

from __future__ import annotations

import importlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from pagedattn import registry
from pagedattn.allocator import EventKind

__all__ = ["Paged", "Side", "Vllm", "peers"]

_NO_LIMIT = 1 << 30  # tokens


class Side(ABC):
    """One allocator of `num_blocks` blocks of `block_size` tokens."""

    name: ClassVar[str]

    @abstractmethod
    def __init__(
        self, *, num_blocks: int, block_size: int, cache: bool, events: bool = False
    ) -> None: ...

    @abstractmethod
    def prepare(self, seq: int, tokens: list[int]) -> Any:
        """The prompt as admit() wants it."""

    @abstractmethod
    def admit(self, seq: int, prompt: Any) -> int:
        """Tokens that were found; all tokens of the prompt have slots and count as written."""

    @abstractmethod
    def decode(self, seqs: Sequence[int], token: int) -> None:
        """`token` becomes the next of each sequence."""

    @abstractmethod
    def branch(self, parent: int, child: int) -> None:
        """`child` has the tokens of `parent` and a slot for one more."""

    @abstractmethod
    def finish(self, seq: int) -> None:
        """The sequence ends."""

    @abstractmethod
    def drain(self) -> int:
        """Take the events; how many blocks were stored."""


class Paged(Side):
    """Ours."""

    name = "paged"

    def __init__(
        self, *, num_blocks: int, block_size: int, cache: bool, events: bool = False
    ) -> None:
        self.allocator = registry.allocator(
            num_blocks=num_blocks, block_size=block_size, prefix_cache=cache
        )

    def prepare(self, seq: int, tokens: list[int]) -> list[int]:
        return tokens

    def admit(self, seq: int, prompt: list[int]) -> int:
        hit = self.allocator.open(seq, prompt).tokens
        self.allocator.append(seq, len(prompt) - hit)
        self.allocator.commit(seq, prompt[hit:] if hit else prompt)
        return hit

    def decode(self, seqs: Sequence[int], token: int) -> None:
        self.allocator.append_many(dict.fromkeys(seqs, 1))
        for seq in seqs:
            self.allocator.commit(seq, (token,))

    def branch(self, parent: int, child: int) -> None:
        self.allocator.fork(parent, child)
        self.allocator.append(child, 1)

    def finish(self, seq: int) -> None:
        self.allocator.close(seq)

    def drain(self) -> int:
        events = self.allocator.drain_events()
        return sum(event.kind is EventKind.STORED for event in events)


class Vllm(Side):
    """vLLM's KVCacheManager with one group of full attention and its default hash."""

    name = "vllm"

    def __init__(
        self, *, num_blocks: int, block_size: int, cache: bool, events: bool = False
    ) -> None:
        specs, utils = _vllm("kv_cache_interface"), _vllm("core.kv_cache_utils")
        sha256 = _vllm("", "utils.hashing").sha256
        utils.init_none_hash(sha256)
        spec = specs.FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=8, dtype=_module("torch").float16
        )
        self._manager = _vllm("core.kv_cache_manager").KVCacheManager(
            specs.KVCacheConfig(
                num_blocks=num_blocks + 1,  # it keeps one for itself
                kv_cache_tensors=[],
                kv_cache_groups=[specs.KVCacheGroupSpec(["layer"], spec)],
            ),
            max_model_len=_NO_LIMIT,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=cache,
            enable_kv_cache_events=events,
        )
        self._hasher = utils.get_request_block_hasher(block_size, sha256) if cache else None
        self._request = _vllm("request").Request
        self._sampling = _vllm("", "sampling_params").SamplingParams(max_tokens=_NO_LIMIT)
        self._requests: dict[int, Any] = {}
        self._block_size = block_size

    def prepare(self, seq: int, tokens: list[int]) -> Any:
        return self._request(str(seq), tokens, self._sampling, None, block_hasher=self._hasher)

    def admit(self, seq: int, prompt: Any) -> int:
        manager, length = self._manager, prompt.num_tokens
        blocks, hit, _ = manager.get_computed_blocks(prompt)
        if manager.allocate_slots(prompt, length - hit, hit, blocks) is None:
            raise MemoryError(f"no {length - hit} slots for sequence {seq}")
        prompt.num_computed_tokens = length
        self._requests[seq] = prompt
        return int(hit)

    def decode(self, seqs: Sequence[int], token: int) -> None:
        for seq in seqs:
            request = self._requests[seq]
            request.append_output_token_ids(token)
            if self._manager.allocate_slots(request, 1) is None:
                raise MemoryError(f"no slot for sequence {seq}")
            request.num_computed_tokens += 1

    def branch(self, parent: int, child: int) -> None:
        self.admit(child, self.prepare(child, list(self._requests[parent].all_token_ids)))

    def finish(self, seq: int) -> None:
        self._manager.free(self._requests.pop(seq))

    def drain(self) -> int:
        events = self._manager.take_events()
        return sum(len(getattr(event, "token_ids", ())) // self._block_size for event in events)


def peers() -> dict[str, type[Side] | str]:
    """The other sides by name: a class, or why it cannot be imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        _vllm("core.kv_cache_manager")
    except ImportError as error:
        return {"vllm": f"{type(error).__name__}: {error}"}
    return {"vllm": Vllm}


def _vllm(name: str, outside: str = "") -> Any:
    return _module(f"vllm.{outside}" if outside else f"vllm.v1.{name}")


def _module(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stranger's, not ours to judge
        return importlib.import_module(name)
