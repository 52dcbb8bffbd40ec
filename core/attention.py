"""The attention contract. An author writes a backend (capabilities) and an op (one kernel call):

    class Op(AttentionOp):
        def kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes): ...

    class Backend(AttentionBackend):
        name, op = "mine", Op
        def capabilities(self, device): return Capabilities(head_dim=..., ...)

and a user calls open() -> op, op.plan(batch) -> plan, op.write(...), op.run(...). open, plan, write
and run belong to core: they check their arguments, so every backend gives the same errors.
docs/SPEC.md states the semantics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.capabilities import Capabilities, check
from pagedattn.compile import new_handle, run_node, write_node
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation
from pagedattn.errors import InvalidBatch, Refusal, Unsupported
from pagedattn.hooks import API_VERSION
from pagedattn.spec import AttentionSpec, Limits
from pagedattn.validate import batch as check_step, tensors as check_tensors
from pagedattn.write import write_kv

__all__ = ["AttentionBackend", "AttentionOp", "Plan"]


class Plan:
    """What an op derived from a batch.

    data        what prepare() returned
    num_tokens  rows of q that belong to a request, batch.num_tokens
    max_block   largest block id that a row can see; -1 when unknown
    """

    __slots__ = ("__weakref__", "batch", "data", "handle", "max_block", "num_tokens", "op")

    def __init__(self, op: AttentionOp, batch: AttentionBatch, data: Any, max_block: int) -> None:
        self.op, self.handle = op, new_handle(self)
        self.update(batch, data, max_block)

    def update(self, batch: AttentionBatch, data: Any, max_block: int) -> None:
        self.batch, self.data, self.max_block = batch, data, max_block
        self.num_tokens = batch.num_tokens


class AttentionOp:
    """A backend opened for one spec, device and Limits. One thread and one stream at a time.

    device  where the tensors are     info  what is known of it (of the emulated GPU on a CPU)"""

    def __init__(
        self,
        backend: AttentionBackend,
        spec: AttentionSpec,
        limits: Limits,
        *,
        device: torch.device,
        tuning: Mapping[str, int],
        workspace: Tensor,
    ) -> None:
        self.backend, self.spec, self.limits = backend, spec, limits
        self.device, self.tuning, self.workspace = device, tuning, workspace
        self.info = backend.device_info(device)
        self.handle = new_handle(self)
        self._seen = check_tensors.Seen()
        self.setup()

    # -- for authors -----------------------------------------------------------------------------

    def setup(self) -> None:
        """Compile and allocate everything that the spec can need. Called once, by open()."""

    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        """Host work of plan(): derive what kernel() needs, kept in plan.data. Never waits for the
        device. `data` is None, or, when a plan is refreshed, what the last call returned: then
        update it in place (a captured graph holds its pointers), and leave it alone on failure."""
        return None

    def kernel(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        """Write out[:num_tokens] and lse[:num_tokens]. Only launches, on torch's current stream.

        q [T, Hq, D], out [T, Hq, Dv], lse f32 [T, Hq], sinks and alibi_slopes f32 [Hq]."""
        raise NotImplementedError

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        """Store k [T, Hkv, D] and v [T, Hkv, Dv] at slot_mapping i64 [<=T], quantising as the spec
        says; negative slots are skipped. The default works on any device and never synchronises."""
        write_kv(self.spec, k, v, cache, slot_mapping)

    # -- for users -------------------------------------------------------------------------------

    @final
    def plan(self, batch: AttentionBatch, into: Plan | None = None) -> Plan:
        """Validate a batch and derive what run() needs; one plan serves every layer of the step.

        into   refresh this plan in place: `batch` must hold the very tensors (pointer, shape and
               stride) that it was made of. A failed refresh leaves it as it was.

        The batch's tensors are kept by reference and must live unchanged until the step's last
        run(). Raises InvalidBatch(request, field, value, bound)."""
        if not isinstance(batch, AttentionBatch):
            raise InvalidBatch("batch", f"a {type(batch).__name__}", "must be an AttentionBatch")
        if into is None:
            max_block = check_step.check_batch(batch, self.spec, self.limits, self.device)
            return Plan(self, batch, self.prepare(batch, None), max_block)
        if not isinstance(into, Plan) or into.op is not self:
            raise InvalidBatch(
                "into", "a plan of another op", "refresh it with the op that made it"
            )
        check_step.check_same_memory(into.batch, batch)
        batch = check_step.fresh_view(batch)  # contents may have changed without a version bump
        max_block = check_step.check_batch(batch, self.spec, self.limits, self.device)
        data = self.prepare(batch, into.data)
        into.update(batch, data, max_block)
        return into

    @final
    def write(self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor) -> None:
        """Store the step's keys and values: k [T, Hkv, D], v [T, Hkv, Dv] (None when shared_kv),
        slot_mapping i64. Negative slots and rows beyond slot_mapping are skipped; no slot twice.

        Mutates cache (PER_TOKEN_HEAD scales too). Raises InvalidTensor, InvalidBatch."""
        if torch.compiler.is_compiling():
            return write_node(self, k, v, cache, slot_mapping)
        try:
            check_tensors.check_write(self._seen, self.spec, self.device, k, v, cache, slot_mapping)
        except AttributeError:
            check_tensors.check_types(k=k, v=v, cache=cache, slot_mapping=slot_mapping)
            raise
        self.write_kernel(k, v, cache, slot_mapping)

    @final
    def run(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        *,
        out: Tensor,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> None:
        """Attention of q [T, Hq, D] over the cache into out [T, Hq, Dv] (and lse f32 [T, Hq]).

        Rows up to query_start_loc[B] are overwritten whole, later ones are not touched. lse,
        sinks and alibi_slopes are given iff the spec says so. Raises InvalidTensor naming the
        tensor before anything is launched."""
        if torch.compiler.is_compiling():
            return run_node(self, q, cache, plan, out, lse, sinks, alibi_slopes)
        try:
            check_tensors.check_run(self._seen, self, q, cache, plan, out, lse, sinks, alibi_slopes)
        except AttributeError:
            check_tensors.check_types(
                q=q,
                cache=cache,
                plan=plan,
                out=out,
                lse=lse,
                sinks=sinks,
                alibi_slopes=alibi_slopes,
            )
            raise
        if torch.is_autocast_enabled(self.device.type):  # the spec's dtypes hold
            with torch.autocast(self.device.type, enabled=False):
                return self.kernel(q, cache, plan, out, lse, sinks, alibi_slopes)
        self.kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


class AttentionBackend:
    """A family of kernels. Cheap to construct; kernel libraries are imported by open()."""

    name: ClassVar[str]
    op: ClassVar[type[AttentionOp]]
    api_version: ClassVar[tuple[int, int]] = API_VERSION
    emulated: Emulation | None = None

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        """What is served on `device`, which may be made up."""
        return Capabilities()

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        """Reasons that no single row can express. Probe only when device.real."""
        return ()

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        """Scratch that run() needs; ops used in turn on one stream may share it."""
        return 0

    def tunables(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
        """Knobs that open(tuning=) accepts and the values worth trying."""
        return {}

    def describe(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Any]:
        """Facts for people: the kernel chosen, its cost model."""
        return {}

    def compile_ahead(
        self, spec: AttentionSpec, limits: Limits, device: DeviceInfo
    ) -> Iterable[str]:
        """Compile what open() would on a device that need not be here, into files where the open()
        of any later process finds them; returns the kernels' names. For specs without refusals.

        Raises Unsupported where the backend or its compiler cannot; NotReady without either."""
        raise Unsupported(
            Refusal(
                self.name,
                "device",
                str(device),
                "a device of this machine",
                "this backend does not compile without the device: run warmup there",
            )
        )

    @final
    def device_info(self, device: Any) -> DeviceInfo:
        """What this backend is told of a device: the emulated GPU in place of the CPU."""
        info = DeviceInfo.of(device)
        return self.emulated.device if self.emulated and info.type == "cpu" else info

    @final
    def open(
        self,
        spec: AttentionSpec,
        limits: Limits,
        *,
        device: torch.device | str,
        tuning: Mapping[str, int] | None = None,
        workspace: Tensor | None = None,
    ) -> AttentionOp:
        """Compile and allocate everything `spec` can need within `limits`.

        tuning     values for tunables(); unknown knobs are a ValueError
        workspace  uint8 scratch of at least workspace_bytes(), shared between ops used in turn

        Raises Unsupported with the refusals of check()."""
        if not isinstance(spec, AttentionSpec):
            raise TypeError(f"spec={spec!r} is not an AttentionSpec")
        if not isinstance(limits, Limits):
            raise TypeError(f"limits={limits!r} is not a Limits")
        info = self.device_info(device)
        if not info.real:
            refusal = Refusal(self.name, "unavailable", str(device), "a device of this machine")
            raise Unsupported((*check(self, spec, info), refusal))
        device = torch.device(device)
        if refusals := check(self, spec, info):
            raise Unsupported(refusals)
        return self.op(
            self,
            spec,
            limits,
            device=device,
            tuning=check_tensors.check_tuning(self.tunables(spec, info), tuning or {}),
            workspace=check_tensors.check_workspace(
                workspace, self.workspace_bytes(spec, limits, info), device
            ),
        )
