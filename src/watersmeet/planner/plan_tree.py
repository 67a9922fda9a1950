"""A printed plan as data: nodes with fields and inputs, drawn as a tree or written as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watersmeet.drawing import Arrow, Box, Diagram


@dataclass(frozen=True)
class PlanTree:
    """One operator of a plan: `name [flags] { field: value, … }` and the plans of its inputs."""

    name: str
    fields: tuple[tuple[str, str], ...] = ()
    inputs: tuple[PlanTree, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line that shows the operator."""
        flags = f" [{', '.join(self.flags)}]" if self.flags else ""
        fields = ", ".join(f"{name}: {value}" for name, value in self.fields)
        return f"{self.name}{flags}" + (f" {{ {fields} }}" if fields else "")

    def lines(self) -> list[str]:
        """The tree as RisingWave draws it, the root first."""
        found = [self.text]
        for i, node in enumerate(self.inputs):
            last = i == len(self.inputs) - 1
            first, *rest = node.lines()
            found.append(("└─" if last else "├─") + first)
            found += [("  " if last else "│ ") + line for line in rest]
        return found

    def walk(self) -> Iterator[PlanTree]:
        """This node and all below it."""
        yield self
        for node in self.inputs:
            yield from node.walk()

    @property
    def joins(self) -> int:
        """The number of joins in the tree."""
        return sum(n.is_join for n in self.walk())

    @property
    def join_height(self) -> int:
        """The number of joins on the longest way from here to a source."""
        return max((i.join_height for i in self.inputs), default=0) + self.is_join

    @property
    def is_join(self) -> bool:
        """True for operators that join."""
        return self.name.endswith("Join")

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value. By hand: EXPLAIN gives it to programs, with all keys."""
        return {
            "name": self.name,
            "flags": list(self.flags),
            "fields": dict(self.fields),
            "children": [i.to_json() for i in self.inputs],
        }


def plan_diagram(plan: PlanTree) -> Diagram:
    """The plan as a graph whose arrows point the way that rows take."""
    boxes: list[Box] = []
    arrows: list[Arrow] = []

    def add(node: PlanTree) -> str:
        name = f"n{len(boxes)}"
        flags = f" [{', '.join(node.flags)}]" if node.flags else ""
        boxes.append(Box(name, node.name + flags, tuple(f"{field}: {value}" for field, value in node.fields)))
        arrows.extend([Arrow(add(i), name) for i in node.inputs])
        return name

    add(plan)
    return Diagram("plan", tuple(boxes), tuple(arrows))
