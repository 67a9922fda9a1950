"""PREPARE and EXECUTE as statements. What they prepare is what the protocol prepares, under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.tokens import Cursor, span_of
from watersmeet.errors import Span, error
from watersmeet.server.datarows import text_columns
from watersmeet.server.messages import Column
from watersmeet.server.oids import UUID, UUIDS, oid_of
from watersmeet.server.steps import Outcome, Reader, Source, Step


@dataclass(frozen=True)
class PrepareStep:
    """`PREPARE name [(type, …)] AS statement`."""

    name: str
    text: str
    oids: tuple[int, ...]

    def run(self, client: Any) -> Outcome:
        client.parse(self.name, self.text, self.oids)
        return Outcome("PREPARE")

    def describe(self, client: Any) -> None:
        """It has no rows."""
        del client


@dataclass(frozen=True)
class ExecuteStep:
    """`EXECUTE name [(value, …)]`. values: the query that gives them, None without any. count: how many they are."""

    name: str
    values: Step | None
    count: int
    text: str
    span: Span

    def run(self, client: Any) -> Outcome:
        prepared = client.prepared_named(self.name)
        if self.count != len(prepared.parameters):
            raise error(
                "SYNTAX_ERROR",
                f'wrong number of parameters for prepared statement "{self.name}"',
                detail=f"Expected {len(prepared.parameters)} parameters but got {self.count}.",
                sql=self.text,
                span=self.span,
            )
        step = client.bound_step(prepared, self._texts(client))
        if step is None:
            return Outcome("")
        outcome: Outcome = client.run(step)
        return outcome

    def describe(self, client: Any) -> tuple[Column, ...] | None:
        columns: tuple[Column, ...] | None = client.prepared_named(self.name).columns
        return columns

    def _texts(self, client: Any) -> list[bytes | None]:
        """The values as the protocol has them in text."""
        if self.values is None:
            return []
        outcome = client.run(self.values)
        columns = text_columns(outcome.table, outcome.schema)
        return [None if (value := c[0].as_py()) is None else value.encode() for c in columns]


def _prepare(source: Source, cursor: Cursor) -> Step:
    name = cursor.name().name
    oids = []
    if cursor.take("("):
        oids.append(_oid(cursor))
        while cursor.take(","):
            oids.append(_oid(cursor))
        cursor.expect(")")
    cursor.expect("AS")
    if cursor.done:
        raise cursor.error()
    inner = span_of(cursor.rest)
    text = " " * inner.start + source.text[inner.start : inner.end]  # places stay
    return PrepareStep(name, text, tuple(oids))


def _oid(cursor: Cursor) -> int:
    """The number of the type of a parameter."""
    if cursor.take("UUID"):
        return UUIDS if cursor.take("[", "]") else UUID
    return oid_of(read_type(cursor))


def _execute(source: Source, cursor: Cursor) -> Step:
    place = span_of(cursor.tokens)
    name = cursor.name().name
    if not cursor.take("("):
        cursor.end()
        return ExecuteStep(name, None, 0, source.text, place)
    count, start = 0, cursor.index
    while not cursor.at(")"):
        cursor.until(",", ")")
        count += 1
        if not cursor.take(","):
            break
    listed = cursor.tokens[start : cursor.index]
    cursor.expect(")")
    cursor.end()
    values = source.around("SELECT ", span_of(listed)) if listed else None
    return ExecuteStep(name, values, count, source.text, place)


#: By first word.
READERS: Final[dict[str, Reader]] = {"EXECUTE": _execute, "PREPARE": _prepare}
