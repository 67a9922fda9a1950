"""What is drawn: boxes with text and labelled arrows between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A box with a title and lines below it. style: the name of its colours (see `svg.STYLES`)."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    style: str = "plain"


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow between two boxes, by id. Several between the same two are drawn side by side."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    """A graph without cycles."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    def __post_init__(self) -> None:
        ids = {b.id for b in self.boxes}
        assert len(ids) == len(self.boxes), "two boxes have one id"
        assert all(a.source in ids and a.target in ids for a in self.arrows), "an arrow without its box"
