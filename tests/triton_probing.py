"""What the probes of Triton's interpreter share; see triton_probes.py.

The first argument of the process says which interpreter it is, the one shipped or the repaired."""

import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("ignore")  # the interpreter as shipped warns of casts

EMULATION = None
if sys.argv[1] == "repaired":
    from pagedattn.conformance.emulation.triton import install

    EMULATION = install()

import torch  # noqa: E402

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
PROBES = {}


def probe(function):
    PROBES[function.__name__] = function
    return function


def wide(x):
    return x.double() if x.is_floating_point() else x


def equal(got, expected):
    assert got.shape == expected.shape
    same = (wide(got) == wide(expected)) | (got.isnan() & expected.isnan())
    return "right" if same.all() else f"wrong: {got.tolist()} instead of {expected.tolist()}"


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
