"""Libraries of the flash_attn backend, faked: distributions on disk, functions that compute."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pagedattn.backends.flash_attn import presence, probe
from pagedattn.conformance.emulation.flash_attn.attend import (
    Rules,
    attend,
    key_range,
    starts_without_keys,
)
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation

SM90 = DeviceInfo("cuda", sm=(9, 0), name="sm_90 in a test", real=True)
EMULATION = Emulation(SM90)
OURS = ("flash_attn", "flash_attn_2_cuda", "flash_attn_interface", "flash_attn_3")


TILE = 128
"""Keys that the fakes load at once."""


class Site:
    """A folder in front of sys.path into which distributions are written."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.syspath_prepend(str(root))

    def distribution(self, name: str, version: str, **modules: str) -> None:
        """Metadata, and modules: a dotted name with __ for the dot -> its code."""
        info = self.root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for dotted, code in modules.items():
            *packages, last = dotted.split("__")
            folder = self.root
            for package in packages:
                folder = folder / package
                folder.mkdir(exist_ok=True)
                (folder / "__init__.py").touch()
            (folder / f"{last}.py").write_text(code)
        importlib.invalidate_caches()
        presence.forget()


@contextmanager
def untouched_modules() -> Iterator[None]:
    """Whatever a test imports under these names is gone afterwards."""

    def drop() -> dict[str, object]:
        names = [n for n in sys.modules if n.split(".")[0] in OURS]
        presence.forget()
        probe.forget()
        return {n: sys.modules.pop(n) for n in names}

    before = drop()
    try:
        yield
    finally:
        drop()
        sys.modules.update(before)  # type: ignore[arg-type]


def on_cpu(variant: object, device: DeviceInfo) -> torch.device:
    """A place() that lets every variant compute here."""
    return torch.device("cpu")


def ragged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    starts: list[int],
    lengths: list[int],
    rules: Rules,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse [Hq, T], -inf or the sink without keys) as a Hopper kernel gives them: page sizes
    as they come, rows behind the last key never read."""
    page = k.shape[1]
    out, lse = torch.full_like(q, float("nan")), torch.full((q.shape[1], len(q)), float("nan"))
    for r, keys in enumerate(lengths):
        rows = slice(starts[r], starts[r + 1])
        if rows.start == rows.stop:
            continue
        seen = key_range(rules, rows.stop - rows.start, keys, TILE)
        position = torch.arange(seen.start, seen.stop)
        block, offset = table[r, position // page].long(), position % page
        result, log_sum = attend(rules, q[rows], k[block, offset], v[block, offset], seen, keys)
        log_sum = log_sum.masked_fill(log_sum == torch.inf, -torch.inf)
        if sinks is not None:
            total = torch.logaddexp(log_sum, sinks.double())
            result = (result.double() * torch.exp(log_sum - total)[..., None]).to(q.dtype)
            log_sum = total
        out[rows], lse[:, rows] = result, log_sum.float().T
    return out, lse


def _rules(scale: float, causal: bool, window: tuple[int, int], softcap: float) -> Rules:
    return Rules.of(
        scale=scale, causal=causal, window=window, longest=2**30, softcap=softcap, slopes=None
    )


def fa3_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
    cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
    cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
    q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
    scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    """FlashAttention-3's function with its own parameters."""
    starts = cu_seqlens_q.tolist()
    assert max(b - a for a, b in pairwise(starts)) <= max_seqlen_q
    rules = _rules(softmax_scale, causal, window_size, softcap)
    out, lse = ragged(q, k_cache, v_cache, page_table, starts, cache_seqlens.tolist(), rules)
    return (out, lse) if return_softmax_lse else out


def fa4_varlen(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
    min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
    softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
    num_splits=1, pack_gqa=None, return_lse=False,
):  # fmt: skip
    """FlashAttention-4's function: always a pair, the LSE None unless it is asked for."""
    assert cu_seqlens_k is None
    assert window_size == (None, None)
    assert num_splits == 1  # no splits on SM 9.0
    rules = _rules(softmax_scale, causal, (-1, -1), softcap)
    starts = cu_seqlens_q.tolist()
    out, lse = ragged(q, k, v, page_table, starts, seqused_k.tolist(), rules, learnable_sink)
    return out, lse if return_lse else None


def torch_varlen_out(
    out, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
    window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """torch's function: writes into `out`, causal by window (-1, 0)."""
    assert key.shape[1] % 256 == 0
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert torch.equal(cu_seq_k.diff(), seqused_k)
    rules = Rules.of(
        scale=scale, causal=False, window=window_size, longest=max_k, softcap=0.0, slopes=None
    )
    starts = cu_seq_q.tolist()
    for (first, end), keys in zip(pairwise(starts), seqused_k.tolist(), strict=True):
        assert not starts_without_keys(rules, end - first, keys)
    result, _ = ragged(query, key, value, block_table, starts, seqused_k.tolist(), rules)
    out[: starts[-1]] = result[: starts[-1]]
    return out
