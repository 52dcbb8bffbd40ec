"""The head-room of a run as inline SVG: one strip per dtype, one dot per case, a log scale.

Positions are percentages, so that text and dots keep their size on a narrow screen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from html import escape

from pagedattn.conformance.summary import Room

__all__ = ["headroom_plot"]

STRIP = 26
TICKS = (1, 2, 5)
NEAR = 2.0
"""Below this factor a dot lies in the tinted zone: another machine might round otherwise."""


def headroom_plot(rooms: Sequence[Room]) -> str:
    """HTML of a grid: dtype, strip, smallest value; and the axis. "" without any."""
    if not rooms:
        return ""
    largest = max(value for room in rooms for _, value in room.values)
    # From 1, where a case fails, to the tick above the largest value.
    top = math.log10(next(tick for tick in _ticks() if tick >= max(largest, NEAR)))
    rows = [_row(room, top) for room in rooms]
    return f'<div class="plot">{"".join(rows)}{_axis(top)}</div>'


def _ticks() -> Iterator[float]:
    """1, 2, 5, 10, 20, 50, ..."""
    for decade in itertools.count():
        yield from (tick * 10.0**decade for tick in TICKS)


def _x(value: float, top: float) -> str:
    return f"{100 * min(max(math.log10(value) / top, 0), 1):.2f}%"


def _row(room: Room, top: float) -> str:
    middle = STRIP / 2
    dots = []
    for id, value in sorted(room.values, key=lambda pair: (-pair[1], pair[0] == room.case)):
        kind = ' class="least" r="5"' if id == room.case else ' r="4"'
        title = f"<title>{escape(id)}: {value:.2f}x</title>"
        dots.append(f'<circle{kind} cx="{_x(value, top)}" cy="{middle}">{title}</circle>')
    zone = f'<rect x="0" y="2" height="{STRIP - 4}" width="{_x(NEAR, top)}"/>'
    base = f'<line x1="0" x2="100%" y1="{middle}" y2="{middle}"/>'
    limit = f'<line class="limit" x1="0" x2="0" y1="2" y2="{STRIP - 2}"/>'
    count = len(room.values)
    label = f"head-room of {count} cases in {room.dtype}, the smallest {room.smallest:.1f}x"
    return (
        f"<code>{escape(room.dtype)}</code>"
        f'<svg height="{STRIP}" role="img" aria-label="{escape(label)}">'
        f"{zone}{base}{limit}{''.join(dots)}</svg>"
        f'<span class="value">{room.smallest:.1f}x</span>'
    )


def _axis(top: float) -> str:
    """Ticks: all of them on a short scale, one a decade on a long one."""
    ticks = list(itertools.takewhile(lambda tick: math.log10(tick) <= top + 1e-9, _ticks()))
    if len(ticks) > 7:
        ticks = [tick for tick in ticks if math.log10(tick) % 1 < 1e-9]
    marks = [
        f"<text{' class=' + chr(34) + 'first' + chr(34) if tick == 1 else ''} "
        f'x="{_x(tick, top)}" y="13">{tick:g}x</text>'
        for tick in ticks
    ]
    return (
        f'<span class="empty"></span><svg height="18" aria-hidden="true">{"".join(marks)}</svg>'
        f'<span class="empty"></span>'
    )
