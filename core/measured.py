"""The measured table: which backend was fastest for a spec on this device.

`pagedattn bench --save` writes it, select(by="measured") reads it. One JSON file, in the user's
cache directory unless PAGEDATTN_MEASURED names another place. A record is one backend's median time
in one workload; a newer one replaces it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedattn.user_cache import cache_path, replace_file

if TYPE_CHECKING:
    from pagedattn.spec import AttentionSpec

__all__ = ["Record", "device_name", "fastest", "load", "save", "spec_fields", "table_path"]

SCHEMA = "pagedattn.measured/1"


@dataclass(frozen=True, kw_only=True)
class Record:
    """seconds: median time of run() of `backend` in `workload` (of phase decode, prefill or mixed)
    for the tuning key `spec` (as spec_fields() gives it) on the device of that name."""

    device: str
    spec: dict[str, Any]
    workload: str
    phase: str
    backend: str
    seconds: float


def table_path() -> Path:
    """PAGEDATTN_MEASURED, or measured.json in the user's cache directory."""
    return cache_path("measured.json", variable="PAGEDATTN_MEASURED")


def load() -> list[Record]:
    """Every record; none when there is no file. Raises ValueError for a file of another kind."""
    path = table_path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it and measure again") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no table of schema {SCHEMA}; remove it and measure again")
    return [Record(**record) for record in data["records"]]


def save(records: Iterable[Record]) -> Path:
    """Merge `records` into the table, atomically; returns where it is."""
    merged = {_identity(record): record for record in (*load(), *records)}
    data = {"schema": SCHEMA, "records": [dataclasses.asdict(r) for r in merged.values()]}
    path = table_path()
    replace_file(path, json.dumps(data, indent=1).encode())
    return path


def fastest(spec: AttentionSpec, device: Any, names: Sequence[str]) -> str:
    """The fastest of `names` for `spec` on `device`, by the measured table.

    Records of the same tuning key on the same device count; max_query_len is not compared, but a
    decode-only spec looks at decode workloads only. Backends are compared over the workloads in
    which all of them that have records were measured, by the geometric mean of their times.

    Raises LookupError, naming the command that measures, when the table cannot say."""
    wanted, where = _key(spec_fields(spec)), device_name(device)
    times: dict[str, dict[str, float]] = {}
    for record in load():
        if (
            record.backend in names
            and record.device == where
            and _key(record.spec) == wanted
            and (spec.max_query_len != 1 or record.phase == "decode")
        ):
            times.setdefault(record.backend, {})[record.workload] = record.seconds
    if not times:
        raise LookupError(
            f"none of {', '.join(names)} was measured for this spec on {where or device}; "
            f"measure them with `{_command(spec, names)}`, or select(by='priority')"
        )
    common = set.intersection(*(set(of) for of in times.values()))
    if not common:
        raise LookupError(
            f"{', '.join(times)} were never measured in the same workload on {where}; "
            f"measure them together with `{_command(spec, list(times))}`"
        )
    return min(times, key=lambda name: sum(math.log(times[name][w]) for w in common))


def spec_fields(spec: AttentionSpec) -> dict[str, Any]:
    """A spec as plain JSON values: dtypes and enums by name."""
    return {field.name: _plain(getattr(spec, field.name)) for field in dataclasses.fields(spec)}


def device_name(device: Any) -> str:
    """The name that results are filed under: the GPU's, or the processor's and its threads'
    number, which decides as much."""
    from pagedattn.device import DeviceInfo

    info = DeviceInfo.of(device)
    if info.type != "cpu":
        return info.name
    import torch

    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).removeprefix("torch.")


def _key(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    ignored = ("scale", "max_query_len")
    return tuple(sorted((k, json.dumps(v)) for k, v in fields.items() if k not in ignored))


def _identity(record: Record) -> tuple[object, ...]:
    return record.device, _key(record.spec), record.workload, record.phase, record.backend


def _command(spec: AttentionSpec, names: Sequence[str]) -> str:
    fields = spec_fields(spec)
    shape = f"{spec.num_heads}/{spec.num_kv_heads}/{spec.head_dim}"
    return (
        f"pagedattn bench decode --backend {' '.join(names)} --shape {shape} "
        f"--dtype {fields['dtype']} --block-size {spec.block_size} --save"
    )
