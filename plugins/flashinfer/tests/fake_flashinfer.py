"""A stand-in for flashinfer: its wrappers' parameters, recorded calls, torch for the kernels.

It is as strict as the library: lengths for plan() lie on the CPU, out is contiguous, pools have
equal strides, every listed page is read. Its LSE is in base 2, rows without keys are NaN.
"""

import math

import torch

__all__ = ["CALLS", "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"]

CALLS: list[tuple[str, dict]] = []


class _Wrapper:
    def _pages(self, kv_indptr, indices, last_page_len, page_size):
        for lengths in (kv_indptr, last_page_len):
            assert lengths.device.type == "cpu"
            assert lengths.dtype == torch.int32
        assert indices.dtype == torch.int32
        assert bool((kv_indptr.diff() > 0).all()), "a request without pages"
        assert bool(((last_page_len >= 1) & (last_page_len <= page_size)).all())
        self.kv, self.indices, self.last = kv_indptr.tolist(), indices.clone(), last_page_len

    def _attend(self, q, pools, starts, out, lse, return_lse):
        k_pool, v_pool = pools
        assert k_pool.stride() == v_pool.stride()
        if self.layout == "HND":
            k_pool, v_pool = k_pool.transpose(1, 2), v_pool.transpose(1, 2)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        assert out.is_contiguous()
        lse = torch.empty(q.shape[:2], device=q.device) if lse is None else lse
        assert len(q) == starts[-1]
        page = k_pool.shape[1]
        assert page == self.page_size
        for r in range(len(starts) - 1):
            rows = slice(starts[r], starts[r + 1])
            listed = self.indices[self.kv[r] : self.kv[r + 1]].long()
            keys = (len(listed) - 1) * page + int(self.last[r])
            k, v = (p[listed].flatten(0, 1)[:keys].double() for p in (k_pool, v_pool))
            out[rows], lse[rows] = self._one(q[rows].double(), k, v)
        return (out, lse) if return_lse else out

    def _one(self, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        score = torch.einsum("rhd,nhd->rhn", q, k) * self.sm_scale
        if self.cap:
            score = self.cap * torch.tanh(score / self.cap)
        row = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
        key = torch.arange(len(k), device=q.device)
        keep = (key <= row) if self.causal else torch.ones_like(key <= row)
        if self.left >= 0:
            keep = keep & (key >= row - self.left)
        score = score.masked_fill(~keep[:, None], -torch.inf)
        weight = torch.softmax(score, -1).to(self.dtype).double()
        out = torch.einsum("rhn,nhd->rhd", weight, v)
        return out.to(self.dtype), (torch.logsumexp(score, -1) / math.log(2)).float()


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", backend="auto"):
        assert float_workspace_buffer.dtype == torch.uint8
        self.layout = kv_layout

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, causal=False, sm_scale=None, window_left=-1,
        logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        CALLS.append(("prefill.plan", {"causal": causal, "window_left": window_left}))
        self._pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        self.starts = qo_indptr.tolist()
        self.causal, self.left, self.cap = causal, window_left, logits_soft_cap
        self.sm_scale, self.dtype, self.page_size = sm_scale, q_data_type, page_size

    def run(self, q, paged_kv_cache, out=None, lse=None, return_lse=False):
        CALLS.append(("prefill.run", {"in_place": out is not None}))
        return self._attend(q, paged_kv_cache, self.starts, out, lse, return_lse)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_tensor_cores=False, backend="auto"
    ):
        assert float_workspace_buffer.dtype == torch.uint8
        self.layout = kv_layout

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *,
        sm_scale=None, window_left=-1, logits_soft_cap=None, q_data_type="float16",
        kv_data_type=None,
    ):  # fmt: skip
        CALLS.append(("decode.plan", {"window_left": window_left}))
        self._pages(indptr, indices, last_page_len, page_size)
        self.causal, self.left, self.cap = False, window_left, logits_soft_cap
        self.sm_scale, self.dtype, self.page_size = sm_scale, q_data_type, page_size

    def run(self, q, paged_kv_cache, out=None, lse=None, return_lse=False):
        CALLS.append(("decode.run", {"in_place": out is not None}))
        starts = list(range(len(self.kv)))
        return self._attend(q, paged_kv_cache, starts, out, lse, return_lse)
