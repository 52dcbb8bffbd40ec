"""The engine: submit, step, abort, and generate() around them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch

from pagedattn.allocator import BlockAllocator
from pagedattn.attention import AttentionBackend
from pagedattn.copies import copy_blocks
from pagedattn.engine.checks import check_device, check_request, one_each, token_ids
from pagedattn.engine.layers import PagedLayers
from pagedattn.engine.models import resolve_model
from pagedattn.engine.output import Completion, EngineStats, FinishReason, Progress, StepOutput
from pagedattn.engine.request import Request, RequestState
from pagedattn.engine.runner import ModelRunner
from pagedattn.engine.sampling import SamplingParams, check_logits, make_generator, sample
from pagedattn.engine.scheduler import Schedule, Scheduler
from pagedattn.engine.step import build_step
from pagedattn.errors import EngineError, InvalidRequest
from pagedattn.registry import allocator as make_allocator, backend as find_backend
from pagedattn.spec import Limits

__all__ = ["Engine"]

Prompt = str | Sequence[int]

_ENGINES: weakref.WeakKeyDictionary[BlockAllocator, weakref.ref[Engine]] = (
    weakref.WeakKeyDictionary()
)
"""Who uses an allocator: block ids mean something in the caches of one engine only."""


class Engine:
    """Runs one model with continuous batching on the chosen backend and allocator.

    model             a ModelRunner, or what a runner plugin knows: a name such as "smollm2", a
                      directory, a Hugging Face model
    backend           name or instance of an attention backend; never replaced by another
    allocator         name or instance of a block allocator (an instance brings its own num_blocks
                      and block_size)
    num_blocks        blocks of the pool of every layer, default 512
    block_size        tokens per block, default 16
    max_batch_tokens  rows of one step; longer prompts are computed in chunks
    max_requests      requests of one step
    watermark         fraction of the pool, 0 <= watermark < 1, that is left when a request joins
                      running ones, so that these can grow; ignored where the allocator reserves
    dtype, device     of a model that is loaded by a plugin; default float32 on the CPU

    Raises Unsupported when the backend declines a layer of the model, UnknownName, NotReady,
    ValueError. One thread. close() it, or use it as a context manager."""

    def __init__(
        self,
        model: Any,
        *,
        backend: str | AttentionBackend = "reference",
        allocator: str | BlockAllocator = "paged",
        num_blocks: int | None = None,
        block_size: int | None = None,
        max_batch_tokens: int = 512,
        max_requests: int = 64,
        watermark: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        # A model may take long to load, so what does not depend on it is checked before.
        for name, value in (("max_batch_tokens", max_batch_tokens), ("max_requests", max_requests)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an int of at least 1")
        if not 0 <= watermark < 1:  # nor NaN
            raise ValueError(f"watermark is {watermark}; at least 0 and below 1 is required")
        chosen = find_backend(backend) if isinstance(backend, str) else backend
        if not isinstance(chosen, AttentionBackend):
            raise TypeError(f"backend={backend!r} is neither a name nor an AttentionBackend")
        if isinstance(model, str):
            check_device(chosen, device or "cpu")
        self.allocator = _allocator(allocator, num_blocks, block_size)
        self._closed = False
        self._counters = EngineStats()
        self._ids = itertools.count()
        self._requests: dict[int, Request] = {}
        self.model: ModelRunner = resolve_model(model, dtype=dtype, device=device)
        self._owns_model = self.model is not model
        try:
            limits = Limits(
                max_requests=max_requests,
                max_tokens=max_batch_tokens,
                max_seq_len=min(
                    self.model.max_model_len, self.allocator.num_blocks * self.allocator.block_size
                ),
                num_blocks=self.allocator.num_blocks,
            )
            self.backend, self.limits = chosen, limits
            self.layers = PagedLayers(
                chosen,
                self.model.layer_specs(self.allocator.block_size),
                limits,
                device=self.model.device,
                stats=self._counters,
            )
        except BaseException:
            self._close_model()
            raise
        self.scheduler = Scheduler(
            self.allocator,
            max_batch_tokens=max_batch_tokens,
            max_requests=max_requests,
            watermark=watermark,
        )
        _ENGINES[self.allocator] = weakref.ref(self)

    # -- requests ------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue a request; its id is in the outputs of step().

        prompt   token ids, or text when the model has a tokenizer

        Raises InvalidRequest when it can never be served: an empty prompt, unknown token ids, more
        tokens than the model's positions or the pool can hold."""
        if self._closed:
            raise EngineError("this engine is closed; make another one")
        params = SamplingParams() if params is None else params
        tokens = self.model.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        check_request(tokens, params, self.model, self.allocator)
        eos = frozenset() if params.ignore_eos else self.model.eos_token_ids
        request = Request(
            id=next(self._ids),
            tokens=tokens,
            prompt_len=len(tokens),
            params=params,
            stop_ids=params.stop_token_ids | eos,
            generator=make_generator(params),
        )
        self._requests[request.id] = request
        self.scheduler.add(request)
        return request.id

    def abort(self, request_id: int) -> Completion | None:
        """End a request in any state and give its blocks back. None when there is no such request
        any more (it has finished, was aborted, or never existed)."""
        request = self._requests.get(request_id)
        return None if request is None else self._finish(request, FinishReason.ABORTED)

    @property
    def pending(self) -> bool:
        """Whether step() has work to do."""
        return self.scheduler.pending

    def step(self) -> list[StepOutput]:
        """One forward pass; returns the tokens it gave, at most one per request.

        When it raises, the requests of the step hold no blocks and wait to be computed again: step
        once more, or abort them. Raises EngineError when no progress is possible."""
        schedule = self.scheduler.schedule()
        self._counters.preemptions = self.scheduler.preemptions
        if not schedule.work:
            return []
        stats = self.allocator.stats()
        held = stats.live + stats.reserved
        self._counters.peak_blocks = max(self._counters.peak_blocks, held)
        try:
            return self._run(schedule)
        except BaseException:
            for item in schedule.work:
                if item.request.state is RequestState.RUNNING:
                    self.scheduler.preempt(item.request)
            raise

    def _run(self, schedule: Schedule) -> list[StepOutput]:
        counters = self._counters
        inputs = build_step(
            schedule.work,
            block_size=self.allocator.block_size,
            num_blocks=self.limits.num_blocks,
            device=self.model.device,
        )
        copy_blocks(self.layers.caches, self.layers.caches, schedule.copies)
        with self.layers.step(inputs.batch), torch.inference_mode():
            start, inside = perf_counter(), counters.write_s + counters.run_s
            logits = self.model.forward(
                inputs.input_ids, inputs.positions, self.layers, inputs.logits_rows
            )
        done = perf_counter()
        counters.model_s += done - start - (counters.write_s + counters.run_s - inside)
        requests = inputs.sampled
        check_logits(logits, len(requests), self.model.vocab_size)
        self.scheduler.commit(schedule.work)
        tokens = sample(logits, [r.params for r in requests], [r.generator for r in requests])
        counters.sample_s += perf_counter() - done
        counters.steps += 1
        counters.computed_tokens += len(inputs.input_ids)
        counters.generated_tokens += len(tokens)
        return [self._take(r, token) for r, token in zip(requests, tokens, strict=True)]

    def _take(self, request: Request, token: int) -> StepOutput:
        reason = request.append(token)
        completion = None if reason is None else self._finish(request, reason)
        return StepOutput(request.id, token, completion)

    def _finish(self, request: Request, reason: FinishReason) -> Completion:
        self.scheduler.finish(request, reason)
        del self._requests[request.id]
        tokens = tuple(request.tokens[request.prompt_len :])
        return Completion(
            request_id=request.id,
            token_ids=tokens,
            finish_reason=reason,
            prompt_len=request.prompt_len,
            cached_tokens=request.cached_tokens or 0,
            preemptions=request.preemptions,
            text=self.model.decode(tokens),
        )

    # -- whole batches -------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> list[Completion]:
        """Continue all prompts together; the completions come in the order of the prompts.

        params    for all of them, or one for each
        chat      put text prompts into the model's chat template
        progress  called after every step

        Nothing runs when one of them is refused (InvalidRequest). When anything is raised, or the
        user interrupts, no request is left and every block is given back."""
        if isinstance(prompts, str):
            raise InvalidRequest("prompts is one text; give a list of prompts")
        if self.pending:
            raise EngineError("requests of submit() are pending; step() until they are done first")
        each = one_each(params, len(prompts))
        ids: list[int] = []
        done: dict[int, Completion] = {}
        tokens = 0
        try:
            for prompt, how in zip(prompts, each, strict=True):
                if chat and isinstance(prompt, str):
                    prompt = self.model.encode(prompt, chat=True)
                ids.append(self.submit(prompt, how))
            budgets = dict(zip(ids, (how.max_new_tokens for how in each), strict=True))
            while self.pending:
                for output in self.step():
                    tokens += 1
                    if output.completion is not None:
                        done[output.request_id] = output.completion
                        budgets[output.request_id] = len(output.completion.token_ids)
                if progress is not None:
                    progress(Progress(len(done), len(ids), tokens, sum(budgets.values())))
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        if len(done) < len(ids):
            raise EngineError(f"{len(ids) - len(done)} of the prompts were aborted meanwhile")
        return [done[request_id] for request_id in ids]

    @property
    def stats(self) -> EngineStats:
        """A snapshot of the counters; `allocator.stats()` has those of the pool."""
        return replace(self._counters)

    def close(self) -> None:
        """Abort what is pending; give the model back as it was, and the allocator."""
        self._closed = True
        for request_id in list(self._requests):
            self.abort(request_id)
        self._close_model()
        owner = _ENGINES.get(self.allocator)
        if owner is not None and owner() is self:
            del _ENGINES[self.allocator]

    def _close_model(self) -> None:
        if self._owns_model:
            self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _allocator(
    allocator: str | BlockAllocator, num_blocks: int | None, block_size: int | None
) -> BlockAllocator:
    if isinstance(allocator, str):
        return make_allocator(
            allocator,
            num_blocks=512 if num_blocks is None else num_blocks,
            block_size=16 if block_size is None else block_size,
        )
    if not isinstance(allocator, BlockAllocator):
        raise TypeError(f"allocator={allocator!r} is neither a name nor a BlockAllocator")
    for name, given in (("num_blocks", num_blocks), ("block_size", block_size)):
        own = getattr(allocator, name)
        if given is not None and given != own:
            raise ValueError(f"{name}={given}, but the given allocator has {name}={own}")
    owner = _ENGINES.get(allocator, lambda: None)()
    if owner is not None:
        raise ValueError("the allocator is in use; close() the engine that has it first")
    if allocator.stats().reclaimable:
        allocator.reset()  # what it remembers lies in the caches of another engine
    return allocator
