"""Nodes that only batch queries have: queries of WITH, recursion, files, system relations, the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from sqlglot import exp

from watersmeet.algebra.base import Column, Leaf, Node
from watersmeet.errors import Span


@dataclass(frozen=True)
class Named(Node):
    """The rows of a named query with new ids. The query is evaluated once, regardless of the number of its readers.

    name: unique in the tree. definition: None inside the recursion with this name, for the rows of its last round.
    """

    name: str
    definition: Node | None
    outputs: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return () if self.definition is None else (self.definition,)

    def over(self, inputs: Sequence[Node]) -> Named:
        return replace(self, definition=inputs[0]) if inputs else self

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Recursion(Node):
    """The rows of `anchor`, and then repeatedly the rows that `step` computes from the rows of the last round, until
    there are none.

    `step` reads the rows of the last round as `Named` with `name`. distinct: whether rows that were already output are
    dropped.
    """

    anchor: Node
    step: Node
    name: str
    distinct: bool
    outputs: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.anchor, self.step)

    def over(self, inputs: Sequence[Node]) -> Recursion:
        return replace(self, anchor=inputs[0], step=inputs[1])

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class FileScan(Leaf):
    """The rows of files, read by DuckDB's function `call`. source_names: the function's own names of the outputs."""

    call: exp.Expression
    outputs: tuple[Column, ...]
    source_names: tuple[str, ...]


@dataclass(frozen=True)
class SystemScan(Leaf):
    """The rows of a system relation. name: qualified by its schema."""

    name: str
    outputs: tuple[Column, ...]


@dataclass(frozen=True)
class Past:
    """A moment of the past. sql: DuckDB SQL without columns for the number of a commit, or for a time with time zone.

    by: `commit`: the content of all relations as shown after this commit; `own commit`: the relation's own content
    after it, even if views did not reflect it yet.
    """

    by: Literal["commit", "own commit", "time"]
    sql: str


@dataclass(frozen=True)
class PastScan(Leaf):
    """The rows of a relation as of a moment of the past.

    name: the DuckDB name of these rows, the same for all scans of the relation as of this moment. span: the span of the
    relation's name in the SQL text.
    """

    grows: ClassVar[bool] = True
    relation_id: str
    name: str
    past: Past
    outputs: tuple[Column, ...]
    span: Span | None


@dataclass(frozen=True)
class TopicScan(Leaf):
    """The present messages of a topic.

    relation_id: the id of a source that is `reopened`. name: the DuckDB name of these rows, unique to this scan. start,
    shards: see `arrivals.Reopened`.
    """

    relation_id: str
    name: str
    start: str
    shards: str
    outputs: tuple[Column, ...]
