"""The verdict as a badge: the JSON that a shields.io endpoint serves."""

from __future__ import annotations

from typing import Any

__all__ = ["to_badge"]

COLORS = {"CONFORMS": "brightgreen", "DOES NOT CONFORM": "red", "NOT JUDGED": "lightgrey"}


def to_badge(run: dict[str, Any]) -> dict[str, Any]:
    """Of one entry of a report's `runs`; `message` is the text of the badge."""
    word, counts = run["verdict"]["word"], run["verdict"]["counts"]
    wrong = counts["failed"] or counts["not run"]
    told = "failed" if counts["failed"] else "not run" if wrong else "passed"
    message = f"{word.lower()}: {counts[told]} {told}"
    if not wrong and counts["declined"]:
        message += f", {counts['declined']} declined"
    return {
        "schemaVersion": 1,
        "label": f"pagedattn {run['subject']['name']}",
        "message": message,
        "color": COLORS.get(word, "yellow" if counts["known failure"] else "green"),
    }
