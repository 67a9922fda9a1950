"""Assertions on a printed plan: `joins = 3`, `join-height = 2`, `has X`, `X below Y` and so on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_DRAWING: Final = re.compile(r"^[\s│├└─]*")
_JOIN: Final = re.compile(r"^\w*Join\b")


@dataclass(slots=True)
class Node:
    """One line of a plan and the operators below it (its inputs)."""

    text: str
    inputs: list[Node] = field(default_factory=list)

    def walk(self) -> list[Node]:
        """This node and all below it."""
        found = [self]
        for node in self.inputs:
            found += node.walk()
        return found


def tree(lines: list[str]) -> Node:
    """The tree that the drawing shows: a line belongs to the nearest line above it that is drawn further left."""
    root = Node("")
    path: list[tuple[int, Node]] = [(-1, root)]
    for line in lines:
        prefix = _DRAWING.match(line)
        depth = prefix.end() if prefix else 0
        text = line[depth:].strip()
        if not text:
            break
        while path[-1][0] >= depth:
            path.pop()
        node = Node(text)
        path[-1][1].inputs.append(node)
        path.append((depth, node))
    return root


def broken(assertion: str, lines: list[str]) -> str | None:
    """None if `assertion` holds for the plan, else what the plan has instead."""
    nodes = tree(lines).walk()[1:]
    if m := re.fullmatch(r"(joins|join-height) = (\d+)", assertion):
        real = _joins(nodes) if m[1] == "joins" else max((_height(n) for n in nodes), default=0)
        return None if real == int(m[2]) else f"{m[1]} = {real}"
    if m := re.fullmatch(r"(has|no) (.+)", assertion):
        found = any(m[2] in line for line in lines)
        return None if found == (m[1] == "has") else f"the plan {'lacks' if m[1] == 'has' else 'has'} {m[2]}"
    if m := re.fullmatch(r"(.+?) (not above|above|below) (.+)", assertion):
        lower, upper = (m[3], m[1]) if m[2] != "below" else (m[1], m[3])
        found = any(upper in n.text and any(lower in i.text for i in n.walk()[1:]) for n in nodes)
        return None if found == (m[2] != "not above") else f"{assertion!r} does not hold"
    return f"unknown assertion {assertion!r}"


def contains_in_order(expected: list[str], lines: list[str]) -> str | None:
    """None if the `expected` lines occur in this order (`...` is any text), else the first that does not."""
    stripped = [_DRAWING.sub("", line).rstrip() for line in lines]
    position = 0
    for line in expected:
        wanted = _DRAWING.sub("", line).rstrip()
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("...")))
        while position < len(stripped) and not pattern.fullmatch(stripped[position]):
            position += 1
        if position == len(stripped):
            return line
        position += 1
    return None


def _joins(nodes: list[Node]) -> int:
    return sum(bool(_JOIN.match(n.text)) for n in nodes)


def _height(node: Node) -> int:
    below = max((_height(i) for i in node.inputs), default=0)
    return below + bool(_JOIN.match(node.text))
