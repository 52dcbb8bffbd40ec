"""What is refused before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch

from pagedattn.allocator import BlockAllocator
from pagedattn.attention import AttentionBackend
from pagedattn.capabilities import describe_values
from pagedattn.engine.runner import ModelRunner
from pagedattn.engine.sampling import SamplingParams
from pagedattn.errors import InvalidRequest, Refusal, Unsupported

__all__ = ["check_device", "check_request", "one_each", "token_ids"]


def token_ids(prompt: Sequence[int]) -> list[int]:
    """`prompt` as ints; InvalidRequest when it is something else."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise InvalidRequest(f"prompt={prompt!r} is neither text nor a sequence of ints") from None


def check_request(
    tokens: Sequence[int], params: SamplingParams, model: ModelRunner, allocator: BlockAllocator
) -> None:
    """InvalidRequest unless the engine, with nothing else to do, can serve it to the end."""
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params={params!r} is not a SamplingParams")
    if len(tokens) == 0:
        raise InvalidRequest("the prompt is empty; at least one token is needed")
    vocabulary = model.vocab_size
    for i, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            raise InvalidRequest(
                f"prompt[{i}] is {token}; the model's token ids lie in [0, {vocabulary})"
            )
    stored = len(tokens) + params.max_new_tokens - 1
    asked = f"a prompt of {len(tokens)} tokens with max_new_tokens={params.max_new_tokens}"
    if stored > model.max_model_len:
        raise InvalidRequest(
            f"{asked} needs {stored} positions; the model has {model.max_model_len}; "
            "shorten the prompt or lower max_new_tokens"
        )
    size, blocks = allocator.block_size, allocator.num_blocks
    need = -(-stored // size)
    if need > blocks:
        raise InvalidRequest(
            f"{asked} needs {need} blocks of {size} tokens; the pool has {blocks}, so it could "
            f"never finish; lower max_new_tokens or make the engine with num_blocks >= {need}"
        )


def one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """`params` as a list of `count`."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if isinstance(params, str | Mapping) or not isinstance(params, Sequence):
        raise TypeError(f"params={params!r} is neither a SamplingParams nor a sequence of them")
    if len(params) != count:
        raise InvalidRequest(f"{len(params)} params for {count} prompts; give one, or one for each")
    return list(params)


def check_device(backend: AttentionBackend, device: torch.device | str) -> None:
    """Raises Unsupported when the backend serves nothing on that type of device."""
    info = backend.device_info(device)
    served = backend.capabilities(info).device
    if info.type not in served:
        hint = "choose another --backend or --device"
        raise Unsupported(Refusal(backend.name, "device", info.type, describe_values(served), hint))
