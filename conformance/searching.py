"""Searching for a failing example with Hypothesis, reproducibly, and showing the smallest one.

Hypothesis is imported here and nowhere else, and only when a case searches: the pytest plugin and
the case lists stay light. Nothing is kept on disk; the seed alone decides what is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pagedattn.conformance.case import CaseFailure, Declined, NotRun

if TYPE_CHECKING:
    from hypothesis import settings
    from hypothesis.strategies import SearchStrategy

__all__ = ["search", "search_settings"]

Example = TypeVar("Example")

MOST_ATTEMPTS_TO_SHRINK = 300
"""Attempts after the first failure; a slow backend must not be shrunk for minutes."""


def search_settings(examples: int, *, steps: int = 50) -> settings:
    """The same everywhere: no database, no deadline, no health checks, nothing printed."""
    from hypothesis import HealthCheck, Phase, Verbosity, settings

    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=False,  # the seed of the case decides
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )


def search(
    seed: int,
    strategy: SearchStrategy[Example],
    judge: Callable[[Example], object],
    *,
    examples: int,
) -> None:
    """judge() every example that `seed` draws from `strategy`. Raises CaseFailure with the smallest
    failing example, whose repr must show it whole."""
    from hypothesis import given, seed as seeded
    from hypothesis.errors import Flaky

    failed: set[str] = set()
    tried = 0
    last: list[Example] = []

    def attempt(example: Example) -> None:
        nonlocal tried
        tried += bool(failed)
        if tried > MOST_ATTEMPTS_TO_SHRINK and repr(example) not in failed:
            return
        try:
            judge(example)
        except (Declined, NotRun):
            raise
        except Exception:
            failed.add(repr(example))
            last[:] = [example]
            raise

    run: Any = seeded(seed)(search_settings(examples)(given(strategy)(attempt)))
    try:
        run()
    except (Declined, NotRun):
        raise
    except Flaky as error:
        shown = f"\n  example: {last[0]!r}" if last else ""
        raise CaseFailure(f"fails once and passes when repeated: {error}{shown}") from error
    except CaseFailure as failure:
        raise CaseFailure(f"{failure}\n  smallest example: {last[0]!r}") from failure
    except Exception as error:
        raise CaseFailure(
            f"raised {type(error).__name__}: {error}\n  smallest example: {last[0]!r}"
        ) from error
