"""Puts the stand-in in the place of flash-attn's compiled extension."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any

import torch

from pagedattn.conformance.emulation.device import emulated_gpu
from pagedattn.conformance.emulation.flash_attn import extension
from pagedattn.conformance.emulation.flash_attn.capture import capture
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation, Judged

__all__ = ["EXTENSION", "install"]

EXTENSION = "flash_attn_2_cuda"

DEVICE = emulated_gpu(num_sms=8)


def install() -> Emulation:
    """From now on `import flash_attn` finds the stand-in, and variant fa2 computes on CPU tensors.

    The other variants stay what they are here: without a GPU, unavailable."""
    module: Any = types.ModuleType(EXTENSION, extension.__doc__)
    module.__spec__ = importlib.machinery.ModuleSpec(EXTENSION, loader=None)
    module.varlen_fwd = extension.varlen_fwd
    module.fwd_kvcache = extension.fwd_kvcache
    module.fwd = module.bwd = module.varlen_bwd = extension.not_modelled
    sys.modules[EXTENSION] = module
    for name in [n for n in sys.modules if n.split(".")[0] == "flash_attn"]:
        del sys.modules[name]  # it may have bound the real extension
    interface = importlib.import_module("flash_attn.flash_attn_interface")
    # The package registers this operator for CUDA tensors only.
    ragged = interface._flash_attn_varlen_forward
    ragged.register_kernel("cpu")(ragged._init_fn)

    presence: Any = importlib.import_module("pagedattn.backends.flash_attn.presence")
    probe: Any = importlib.import_module("pagedattn.backends.flash_attn.probe")
    elsewhere = probe.place

    def place(variant: Any, device: DeviceInfo) -> torch.device:
        return torch.device("cpu") if variant.name == "fa2" else elsewhere(variant, device)

    probe.place = place
    presence.forget()
    return Emulation(device=DEVICE, judged=Judged.ADAPTER, capture=capture)
