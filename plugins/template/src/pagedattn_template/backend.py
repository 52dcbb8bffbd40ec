"""A complete attention backend: what it can do, and one kernel call."""

import torch
from torch.nn.functional import scaled_dot_product_attention

import pagedattn as pa


class Op(pa.AttentionOp):
    def kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes):
        batch = plan.batch
        starts = batch.query_start_loc_host.tolist()
        for r, seq_len in enumerate(batch.seq_lens_host.tolist()):
            rows = slice(starts[r], starts[r + 1])
            if rows.start == rows.stop:
                continue  # its row of the table may hold anything
            blocks = batch.block_table[r, : -(-seq_len // self.spec.block_size)].long()
            k = cache.k[blocks].flatten(0, 1)[:seq_len].transpose(0, 1)  # [Hkv, seq_len, D]
            v = cache.v[blocks].flatten(0, 1)[:seq_len].transpose(0, 1)
            position = torch.arange(rows.start - rows.stop, 0, device=q.device) + seq_len
            mask = torch.arange(seq_len, device=q.device) <= position[:, None]
            out[rows] = scaled_dot_product_attention(
                q[rows].transpose(0, 1), k, v, mask, scale=self.spec.scale, enable_gqa=True
            ).transpose(0, 1)


class Backend(pa.AttentionBackend):
    """torch SDPA over gathered blocks."""

    name = "template"
    op = Op

    def capabilities(self, device):
        dtypes = {torch.float32, torch.float16, torch.bfloat16}
        every = {"group_size": None, "head_dim": None, "block_size": None}
        return pa.Capabilities(**every, dtype=dtypes, layout=set(pa.Layout), head_dim_v=None)
