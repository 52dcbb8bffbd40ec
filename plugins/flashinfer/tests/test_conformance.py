"""The suite over the adapter: one test per case. No kernel of FlashInfer runs."""

import pytest
from pagedattn_flashinfer.backend import FlashInferBackend

from pagedattn.conformance.case import Case, Kind, Outcome
from pagedattn.conformance.runner import judge_case
from pagedattn.conformance.subjects import cases_of, of_backend


@pytest.mark.parametrize("case", cases_of(Kind.ATTENTION), ids=lambda c: c.id)
def test_case(backend: FlashInferBackend, case: Case) -> None:
    result = judge_case(of_backend(backend).make(), case)
    assert result.outcome in (Outcome.PASSED, Outcome.DECLINED), result.detail
    assert not case.core or result.outcome is Outcome.PASSED, result.detail
