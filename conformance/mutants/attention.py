"""Planted bugs: backends that are wrong in one small, plausible way each.

They test the suite: tests/test_mutants_attention.py names the case that kills each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pagedattn.conformance.mutants import (
    contract_bugs,
    extreme_bugs,
    input_bugs,
    launch_bugs,
    mask_bugs,
    memo_bugs,
    memory_bugs,
    nonfinite_bugs,
    number_bugs,
    reach_bugs,
    rounding_bugs,
    size_bugs,
    state_bugs,
    together_bugs,
    write_bugs,
)
from pagedattn.conformance.mutants.planting import AttentionMutant

__all__ = ["ATTENTION_MUTANTS", "AttentionMutant"]

ATTENTION_MUTANTS: Mapping[str, AttentionMutant] = MappingProxyType(
    {
        mutant.name: mutant
        for file in (
            mask_bugs,
            memory_bugs,
            write_bugs,
            number_bugs,
            extreme_bugs,
            nonfinite_bugs,
            contract_bugs,
            reach_bugs,
            together_bugs,
            rounding_bugs,
            state_bugs,
            memo_bugs,
            size_bugs,
            input_bugs,
            launch_bugs,
        )
        for mutant in file.MUTANTS
    }
)
"""name -> planted bug"""
