"""Templates of expressions: DuckDB's SQL in which a0, a1 … stand for arguments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Final

from sqlglot import exp, parse_one
from sqlglot.dialects.duckdb import DuckDB

from watersmeet.expressions.values import wrap

#: Messages of templates that fail, as `failing` makes them.
TOO_LONG: Final = "requested length too large"
OVERFLOW: Final = "value out of range: overflow"
UNDERFLOW: Final = "value out of range: underflow"
ZERO_TO_NEGATIVE: Final = "zero raised to a negative power is undefined"
COMPLEX: Final = "a negative number raised to a non-integer power yields a complex result"
FAILURES: Final = (TOO_LONG, OVERFLOW, UNDERFLOW, ZERO_TO_NEGATIVE, COMPLEX)


def failing(message: str, argument: str, kind: str) -> str:
    """A template of DuckDB's type `kind` that fails with one of `FAILURES` for each row.

    It is a cast, as TRY takes no function `error`; with an argument in it, it is no constant that fails when planned.
    """
    return f"CAST(concat('{message}', left(CAST({argument} AS VARCHAR), 0)) AS {kind})"


def fill(template: str, *arguments: exp.Expression) -> exp.Expression:
    """The expression of a template."""
    mapping = {f"a{i}": a for i, a in enumerate(arguments)}

    def replace(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.name in mapping and not node.table:
            return wrap(mapping[node.name])
        return node

    made = _parsed(template).transform(replace)
    return made if isinstance(made, exp.Func) and not isinstance(made, exp.Binary) else exp.Paren(this=made)


class _Templates(DuckDB):  # type: ignore[misc]
    """DuckDB's SQL in which functions stay as they are written: sqlglot would put operators in their place."""

    class Parser(DuckDB.Parser):  # type: ignore[misc]
        """The grammar."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}


@lru_cache(maxsize=1024)
def _parsed(template: str) -> exp.Expression:
    return parse_one(template, dialect=_Templates)
