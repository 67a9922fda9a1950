"""Columns and their order: longest-path layers, then barycentres until arrows cross least.

Sugiyama, Tagawa, Toda: "Methods for visual understanding of hierarchical system structures" (1981).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from watersmeet.drawing.diagram import Arrow, Diagram

_SWEEPS: Final = 12


@dataclass(slots=True)
class Slot:
    """A place in a column: of a box, or of an arrow that passes (`box` None)."""

    column: int
    box: str | None
    before: list[Slot] = field(default_factory=list)
    after: list[Slot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layered:
    """columns: the slots from left to right, each column from top to bottom. ways: the slots of each arrow."""

    columns: list[list[Slot]]
    ways: list[tuple[Arrow, list[Slot]]]


def layered(diagram: Diagram) -> Layered:
    """The diagram in columns: every arrow goes from one column to the next, over slots of its own if it is long."""
    numbers = _numbers(diagram)
    slots = {b.id: Slot(numbers[b.id], b.id) for b in diagram.boxes}
    columns: list[list[Slot]] = [[] for _ in range(max(numbers.values(), default=-1) + 1)]
    for slot in slots.values():
        columns[slot.column].append(slot)
    ways = []
    for arrow in diagram.arrows:
        way = [slots[arrow.source]]
        for column in range(numbers[arrow.source] + 1, numbers[arrow.target]):
            passing = Slot(column, None)
            columns[column].append(passing)
            way.append(passing)
        way.append(slots[arrow.target])
        for one, other in pairwise(way):
            one.after.append(other)
            other.before.append(one)
        ways.append((arrow, way))
    return Layered(_uncrossed(columns), ways)


def _numbers(diagram: Diagram) -> dict[str, int]:
    """The column of each box: as far left as its inputs allow; a box without inputs just before its first reader."""
    inputs: dict[str, list[str]] = {b.id: [] for b in diagram.boxes}
    readers: dict[str, list[str]] = {b.id: [] for b in diagram.boxes}
    for arrow in diagram.arrows:
        inputs[arrow.target].append(arrow.source)
        readers[arrow.source].append(arrow.target)
    numbers: dict[str, int] = {}

    def number(box: str, path: tuple[str, ...]) -> int:
        assert box not in path, f"a cycle through {box}"
        if box not in numbers:
            numbers[box] = max((number(i, (*path, box)) + 1 for i in inputs[box]), default=0)
        return numbers[box]

    for box in diagram.boxes:
        number(box.id, ())
    for box in diagram.boxes:
        if not inputs[box.id] and readers[box.id]:
            numbers[box.id] = min(numbers[r] for r in readers[box.id]) - 1
    return numbers


def _uncrossed(columns: list[list[Slot]]) -> list[list[Slot]]:
    """The order with the fewest crossings of those that sweeps to the right and to the left find."""
    best, fewest = [list(c) for c in columns], _crossings(columns)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        rightward = sweep % 2 == 0
        current = [list(c) for c in best] if sweep == 0 else [list(c) for c in columns]
        for column in current if rightward else reversed(current):
            places = _places(current)
            column.sort(key=lambda s: _barycentre(s.before if rightward else s.after, places, s))
        columns = current
        count = _crossings(columns)
        if count < fewest:
            best, fewest = [list(c) for c in columns], count
    return best


def _places(columns: Sequence[Sequence[Slot]]) -> dict[int, int]:
    return {id(s): i for column in columns for i, s in enumerate(column)}


def _barycentre(neighbours: Sequence[Slot], places: Mapping[int, int], slot: Slot) -> float:
    if not neighbours:
        return places[id(slot)]
    return sum(places[id(n)] for n in neighbours) / len(neighbours)


def _crossings(columns: Sequence[Sequence[Slot]]) -> int:
    places = _places(columns)
    count = 0
    for column in columns:
        ends = [places[id(n)] for s in column for n in sorted(s.after, key=lambda n: places[id(n)])]
        count += sum(a > b for i, a in enumerate(ends) for b in ends[i + 1 :])
    return count
