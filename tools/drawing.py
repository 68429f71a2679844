"""Draws a graph as SVG: ranks from top to bottom, straight names in boxes, no library."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

ROW: Final = 68
"""Pixels from one rank to the next."""
BOX: Final = 26
CHARACTER: Final = 7.3
MARGIN: Final = 16
GAP: Final = 34
SWEEPS: Final = 24

STYLE: Final = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle;fill:#1a1a2e}"
    "text.on{font-size:11px;fill:#555;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    "rect.box{fill:#eef1fb;stroke:#4051b5}path{fill:none;stroke:#6b74a8;stroke-width:1.2}"
)


class Arrow(NamedTuple):
    """One edge."""

    start: str
    end: str
    label: str = ""


def draw(arrows: Iterable[Arrow]) -> str:
    """Return a graph as an SVG document; the same graph is always the same text."""
    arrows = sorted(arrows)
    rank = ranks(arrows)
    ways = {arrow: _way(arrow, rank) for arrow in arrows}
    rows = _ordered(rank, list(ways.values()))
    x = _places(rows, list(ways.values()))
    left = min(x[node] - _width(node) / 2 for row in rows for node in row) - MARGIN
    right = max(x[node] + _width(node) / 2 for row in rows for node in row) + MARGIN
    width, height = right - left, ROW * (len(rows) - 1) + BOX + 2 * MARGIN
    at = {node: (x[node] - left, MARGIN + BOX / 2 + ROW * rank_)
          for rank_, row in enumerate(rows) for node in row}  # fmt: skip
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}">',
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#6b74a8;stroke:none"/></marker>',
        '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
    ]
    lines += [_line([at[node] for node in way], rank[arrow.start] > rank[arrow.end])
              for arrow, way in ways.items()]  # fmt: skip
    lines += [_box(node, *at[node]) for node in sorted(rank)]
    lines += [_label(arrow.label, [at[node] for node in ways[arrow]])
              for arrow in arrows if arrow.label]  # fmt: skip
    return "\n".join([*lines, "</svg>", ""])


def ranks(arrows: Iterable[Arrow]) -> dict[str, int]:
    """Return the row of each node: below all that lead to it, where no circle forbids that."""
    after: dict[str, list[str]] = {}
    for start, end, _ in arrows:
        after.setdefault(start, []).append(end)
        after.setdefault(end, [])
    order: list[str] = []
    state: dict[str, bool] = {}
    back: set[tuple[str, str]] = set()

    def visit(node: str) -> None:
        state[node] = False
        for each in after[node]:
            if each not in state:
                visit(each)
            elif not state[each]:
                back.add((node, each))
        state[node] = True
        order.append(node)

    for node in after:
        if node not in state:
            visit(node)
    rank = dict.fromkeys(after, 0)
    for node in reversed(order):
        for each in after[node]:
            if (node, each) not in back:
                rank[each] = max(rank[each], rank[node] + 1)
    return rank


def _way(arrow: Arrow, rank: dict[str, int]) -> list[str]:
    """Return the nodes of an edge from top to bottom, with a bend in each row between."""
    top, end = sorted((arrow.start, arrow.end), key=rank.__getitem__)
    bends = [f"\0{arrow.start} {arrow.end} {row}" for row in range(rank[top] + 1, rank[end])]
    return [top, *bends, end]


def _ordered(rank: dict[str, int], ways: list[list[str]]) -> list[list[str]]:
    """Return the nodes by rows, each near the middle of its neighbours."""
    rows: list[list[str]] = [[] for _ in range(max(rank.values()) + 1)]
    for node, at in rank.items():
        rows[at].append(node)
    for way in ways:
        for at, node in enumerate(way[1:-1], rank[way[0]] + 1):
            rows[at].append(node)
    near = _neighbours(ways)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            place = {node: (at + 0.5) / len(each) for each in rows for at, node in enumerate(each)}
            middle = {node: fmean(place[each] for each in near[node]) for node in row}
            row.sort(key=middle.__getitem__)
    return rows


def _places(rows: list[list[str]], ways: list[list[str]]) -> dict[str, float]:
    """Return where the middle of each node is, without overlap in a row."""
    near = _neighbours(ways)
    x = dict.fromkeys((node for row in rows for node in row), 0.0)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            wanted = [fmean(x[each] for each in near[node]) for node in row]
            x.update(zip(row, _apart(row, wanted), strict=True))
    return x


def _apart(row: list[str], wanted: list[float]) -> list[float]:
    """Return places in the same order that do not overlap, as near the wanted ones as is simple."""
    steps = [(_width(one) + _width(other)) / 2 + GAP for one, other in pairwise(row)]
    to_right, to_left = wanted[:1], wanted[-1:]
    for step, place in zip(steps, wanted[1:], strict=True):
        to_right.append(max(place, to_right[-1] + step))
    for step, place in zip(reversed(steps), reversed(wanted[:-1]), strict=True):
        to_left.append(min(place, to_left[-1] - step))
    return [(one + other) / 2 for one, other in zip(to_right, reversed(to_left), strict=True)]


def _neighbours(ways: list[list[str]]) -> dict[str, list[str]]:
    near: dict[str, list[str]] = {}
    for way in ways:
        for one, other in pairwise(way):
            near.setdefault(one, []).append(other)
            near.setdefault(other, []).append(one)
    return near


def _width(node: str) -> float:
    return 4 if node.startswith("\0") else len(node) * CHARACTER + 18


def _line(points: list[tuple[float, float]], is_upward: bool) -> str:
    (x, y), *rest = points
    parts = [f"M{x:.0f} {y + BOX / 2:.0f}"]
    above = y + BOX / 2
    for number, (x_next, y_next) in enumerate(rest, 1):
        below = y_next - (BOX / 2 if number == len(rest) else 0)
        middle = (above + below) / 2
        parts.append(f"C{x:.0f} {middle:.0f} {x_next:.0f} {middle:.0f} {x_next:.0f} {below:.0f}")
        x, above = x_next, below
    tip = "marker-start" if is_upward else "marker-end"
    return f'<path d="{" ".join(parts)}" {tip}="url(#tip)"/>'


def _box(node: str, x: float, y: float) -> str:
    width = _width(node)
    return (
        f'<rect class="box" x="{x - width / 2:.0f}" y="{y - BOX / 2:.0f}" width="{width:.0f}"'
        f' height="{BOX}" rx="4"/><text x="{x:.0f}" y="{y + 4:.0f}">{escape(node)}</text>'
    )


def _label(label: str, points: list[tuple[float, float]]) -> str:
    (x, y), (x_next, y_next) = points[0], points[1]
    return (
        f'<text class="on" x="{0.3 * x + 0.7 * x_next:.0f}" y="{0.42 * y + 0.58 * y_next + 4:.0f}">'
        f"{escape(label)}</text>"
    )
