"""A batch as FlashInfer's plan() wants it: rows and pages that matter, by the host's lengths."""

from __future__ import annotations

from dataclasses import dataclass

import pagedattn as pa

__all__ = ["Step"]


@dataclass(frozen=True)
class Step:
    """The rows that see a key, and the pages that they can see. R requests have such rows.

    rows           those of q; None: all that the batch has     count  how many
    entries        places in the flattened block table, request by request
    qo_indptr      R+1 counts of rows       kv_indptr  R+1 counts of pages
    last_page_len  R lengths, 1 to block_size
    """

    rows: tuple[int, ...] | None
    count: int
    entries: tuple[int, ...]
    qo_indptr: tuple[int, ...]
    kv_indptr: tuple[int, ...]
    last_page_len: tuple[int, ...]

    @classmethod
    def of(cls, batch: pa.AttentionBatch, spec: pa.AttentionSpec) -> Step:
        assert batch.query_start_loc_host is not None
        assert batch.seq_lens_host is not None
        starts, lengths = batch.query_start_loc_host.tolist(), batch.seq_lens_host.tolist()
        left = spec.window[0]
        width, size = batch.block_table.shape[1], spec.block_size
        qo, kv = [0], [0]
        last: list[int] = []
        entries: list[int] = []
        rows: list[int] = []
        for r, keys in enumerate(lengths):
            begin, end = starts[r], starts[r + 1]
            if spec.mask is pa.Mask.CAUSAL:
                begin = max(begin, end - keys)  # a row before the first key sees none
            if begin >= end or keys == 0:
                continue
            # Dropping whole pages in front moves keys and rows alike: masks count from the end.
            first = 0 if left is None else max(0, keys - (end - begin) - left) // size
            final = -(-keys // size)
            rows += range(begin, end)
            entries += range(r * width + first, r * width + final)
            qo.append(len(rows))
            kv.append(len(entries))
            last.append((keys - 1) % size + 1)
        all_of_them = len(rows) == batch.num_tokens
        return cls(
            rows=None if all_of_them else tuple(rows),
            count=len(rows),
            entries=tuple(entries),
            qo_indptr=tuple(qo),
            kv_indptr=tuple(kv),
            last_page_len=tuple(last),
        )
