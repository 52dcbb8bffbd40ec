"""A spec and a chip for the tests of the CuPy backend."""

from __future__ import annotations

from typing import Any

import torch

import pagedattn as pa

H100 = pa.DeviceInfo("cuda", sm=(9, 0), num_sms=132, shared_mem=232448)


def spec_of(**options: Any) -> pa.AttentionSpec:
    values: dict[str, Any] = {
        "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": 16,
        "dtype": torch.float16, "scale": 0.125,
    }  # fmt: skip
    return pa.AttentionSpec(**(values | options))
