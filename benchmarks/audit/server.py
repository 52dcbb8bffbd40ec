"""The simulated server that all allocators of an audit share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Server"]


@dataclass(frozen=True, kw_only=True)
class Server:
    """Memory, limits and speed.

    num_blocks    blocks of `block_size` tokens in the pool
    max_len       longest sequence that is served, by any allocator; reserving allocators reserve it
    unit          tokens for which the allocator sees one: block_size replays whole blocks, 1 every
                  token. The tables, counts and fractions are the same.
    timed         requests arrive when the trace says, `speed` times as fast; otherwise in a closed
                  loop: each of `clients` clients sends the next request when its last has ended
    clients       0: as many as there are requests, so that memory alone limits concurrency
    max_running   requests that run at once; 0: no limit
    step_seconds  time of one decode step        prefill_rate  prompt tokens computed per second
    watermark     fraction of the pool that a paged allocator must have left after an admission
    """

    num_blocks: int
    block_size: int
    max_len: int
    unit: int
    timed: bool = False
    speed: float = 1.0
    clients: int = 0
    max_running: int = 0
    step_seconds: float = 0.025
    prefill_rate: float = 20_000.0
    watermark: float = 0.01

    def __post_init__(self) -> None:
        for name, least in (
            ("num_blocks", 1),
            ("block_size", 1),
            ("max_len", 1),
            ("clients", 0),
            ("max_running", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; at least {least} is required")
        if self.num_blocks > 2**31:  # block ids are int32 in block tables
            raise ValueError(f"num_blocks is {self.num_blocks}; at most {2**31} is possible")
        for name in ("speed", "step_seconds", "prefill_rate"):
            if not 1e-9 <= getattr(self, name) <= 1e18:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in 1e-9 .. 1e18")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark}; at least 0 and below 1 is required")
        if self.unit not in (1, self.block_size):
            raise ValueError(f"unit is {self.unit}; it must be 1 or block_size={self.block_size}")

    @property
    def allocator_block_size(self) -> int:
        """Units of a block."""
        return self.block_size // self.unit
