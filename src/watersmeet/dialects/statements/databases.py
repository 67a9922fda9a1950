"""ALTER DATABASE, in all dialects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watersmeet.dialects.tree.statements import Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of
from watersmeet.errors import Span


@dataclass(frozen=True, kw_only=True)
class AlterDatabase(Statement):
    """`ALTER DATABASE SET parallelism = value`. place: of the value."""

    parallelism: str
    place: Span


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """ALTER DATABASE: the cursor stands behind ALTER. None for anything else."""
    if not cursor.take("DATABASE"):
        return None
    if not cursor.take("SET", "PARALLELISM"):
        words = cursor.tokens[: cursor.index + 1]
        shown = " ".join(t.text for t in words).upper()
        hint = "ALTER DATABASE SET parallelism = N changes the number of state buckets of the database that is open."
        return Refused(**base, error=not_supported(shown, cursor.text, span_of(words), hint=hint))
    if not cursor.take("TO"):
        cursor.expect("=")
    value = read_value(cursor)
    place = span_of(cursor.tokens[cursor.index - 1 : cursor.index])
    cursor.end()
    return AlterDatabase(**base, parallelism=value, place=place)
