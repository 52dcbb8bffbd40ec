"""A backend whose kernels have one planted fault each, opened and compiled by the gate.

    python triton_planted.py CHIP

prints a JSON object: kernel -> faults. A process of its own, since the gate sets Triton's driver.
"""

# ruff: noqa: N803

import json
import sys

import torch
import triton
import triton.language as tl

import pagedattn as pa
from pagedattn.conformance.compile.judging import compiled
from pagedattn.conformance.compile.recording import record
from pagedattn.conformance.compile.specs import MODEL_SPECS
from pagedattn.conformance.compile.usage import CHIPS


@triton.jit(do_not_specialize=["stride"])
def product_kernel(
    A, B, OUT, stride, ROWS: tl.constexpr, K: tl.constexpr, ROW: tl.constexpr, REPEAT: tl.constexpr
):
    m, k = tl.arange(0, ROWS), tl.arange(0, K)
    step = ROW if ROW > 0 else stride
    acc = tl.zeros([ROWS, ROWS], tl.float32)
    for i in range(0, REPEAT):
        a = tl.load(A + i * K + m[:, None] * step + k[None, :])
        b = tl.load(B + i * K + m[:, None] * step + k[None, :])
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(OUT + m[:, None] * ROWS + m[None, :], acc)


@triton.jit
def crossed_kernel(A, OUT, ROWS: tl.constexpr):
    i = tl.arange(0, ROWS)
    tl.store(OUT + i, tl.load(A + i))


SOUND = {"ROWS": 64, "K": 64, "ROW": 64, "REPEAT": 4, "num_warps": 4, "num_stages": 2}
VARIANTS = {
    "sound": SOUND,
    "spilling": SOUND | {"ROWS": 128, "num_warps": 1},
    "greedy": SOUND | {"ROWS": 128, "K": 256, "ROW": 256, "num_warps": 8, "num_stages": 4},
    "narrow": SOUND | {"ROW": 0},
}


class Op(pa.AttentionOp):
    def setup(self):
        half, single = torch.float16, torch.float32
        for words in VARIANTS.values():
            product_kernel.warmup(half, half, single, 1, grid=(1,), **words)
        crossed_kernel.warmup(half, half, ROWS=48, grid=(1,))


class Backend(pa.AttentionBackend):
    name, op = "planted", Op

    def capabilities(self, device):
        assert device.real  # a GPU of the machine, so far as a backend can tell
        return pa.Capabilities(device={"cuda"}, group_size=None, dtype={torch.bfloat16})


def main(chip):
    jobs, refused = record("triton_planted:Backend", CHIPS[chip], MODEL_SPECS[:2])
    found = {"refused": refused}
    for name, job in zip([*VARIANTS, "crossed"], jobs, strict=True):
        assert job.models == [MODEL_SPECS[0].name]
        found[name] = compiled(job).faults
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
