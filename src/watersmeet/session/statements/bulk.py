"""One INSERT for many rows: the parameters become columns of a table instead of thousands of statements."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from watersmeet.catalog import VALUE_FACET, Relation
from watersmeet.database.assignment import Target
from watersmeet.database.reading import conformed
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.database.writing import omitted
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.statements import Insert
from watersmeet.session.statements.dml import insert_rows, insert_targets, produce_rows, writable
from watersmeet.values.types import VARCHAR, Field, SqlType, arrow_schema

#: Python types whose values Arrow converts just as SQL would.
_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "smallint": (int,),
    "integer": (int,),
    "bigint": (int,),
    "numeric": (Decimal,),
    "real": (float,),
    "double precision": (float, int),
    "varchar": (str,),
    "bytea": (bytes,),
    "date": (dt.date,),
    "time": (dt.time,),
    "timestamp": (dt.datetime,),
    "timestamptz": (dt.datetime,),
}

#: Stands for a parameter while the statement is parsed; a character of Unicode's private use.
_MARK: Final = "\ue000"


def insert_many(session: Session, text: str, rows: Sequence[Sequence[Any]]) -> Result | None:
    """Runs an INSERT of one row of plain parameters for all `rows` at once.

    Returns None, with nothing done, for any other statement and for values that need SQL's conversions.
    """
    width = len(rows[0])
    if _MARK in text or any(len(row) != width for row in rows):
        return None
    statements = parse(text, session.dialect, [f"{_MARK}{i}" for i in range(width)])
    if len(statements) != 1 or not isinstance(statements[0], Insert):
        return None
    statement = statements[0]
    order = _parameters(statement.query)
    failed = session.transaction is not None and session.transaction.failed
    if order is None or statement.returning is not None or failed:
        return None
    with session.database.guard:
        relation = writable(session, statement.table, statement, "insert into")
        if any(c.name == VALUE_FACET or c.path for c in statement.columns):
            return None
        targets = insert_targets(relation, statement)[: len(order)]
        if len(targets) != len(order) or (statement.columns and len(statement.columns) != len(order)):
            return None
        columns = _columns(rows, order, targets)
        if columns is None:
            return None
        schema = arrow_schema(relation.columns, positional=False)
        given = {t.column.name: c for t, c in zip(targets, columns, strict=True)}
        missing = [c for c in relation.columns if c.name not in given]
        given |= omitted_columns(session, relation, missing, len(rows))
        incoming = pa.Table.from_arrays([given[f.name] for f in schema], schema=schema)
        if not relation.connector:
            return insert_rows(session, relation, incoming, statement)
    return produce_rows(session, relation, incoming, statement)


def _parameters(query: exp.Expression) -> list[int] | None:
    """The number of the parameter in each place, if VALUES has a single row of nothing but parameters."""
    if not isinstance(query, exp.Values) or len(query.expressions) != 1:
        return None
    row = query.expressions[0]
    cells = row.expressions if isinstance(row, exp.Tuple) else []
    if not cells or not all(isinstance(c, exp.Literal) and c.is_string and c.name.startswith(_MARK) for c in cells):
        return None
    return [int(c.name.removeprefix(_MARK)) for c in cells]


def _columns(rows: Sequence[Sequence[Any]], order: Sequence[int], targets: Sequence[Target]) -> list[pa.Array] | None:
    columns = []
    for number, target in zip(order, targets, strict=True):
        values = [row[number] for row in rows]
        if not _is_plain(values, target.column.type):
            return None
        try:
            columns.append(pa.array(values, target.column.type.arrow))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            return None  # one by one, the statement says which value is wrong
        if target.column.type == VARCHAR and pc.any(pc.match_substring(columns[-1], "\0")).as_py():
            return None
    return columns


def _is_plain(values: Sequence[Any], kind: SqlType) -> bool:
    allowed = _PLAIN.get(kind.name, ())
    found = {type(v) for v in values} - {type(None)}
    if not found <= set(allowed):
        return False
    if kind.name in ("timestamp", "timestamptz"):
        return all((v.tzinfo is not None) == (kind.name == "timestamptz") for v in values if v is not None)
    return True


def omitted_columns(session: Session, relation: Relation, columns: Sequence[Field], rows: int) -> dict[str, pa.Array]:
    """The values of columns that are left out, for that many rows."""
    if not columns:
        return {}
    now_us = session.database.clock.now_us()
    texts = ", ".join(f"{omitted(relation, c, now_us)} AS c{i}" for i, c in enumerate(columns))
    with session.database.content.session() as connection:
        values = conformed(
            connection.execute(f"SELECT {texts}").to_arrow_table(), arrow_schema(tuple(columns), positional=False)
        )
    return {c.name: pa.repeat(values.column(i)[0], rows) for i, c in enumerate(columns)}
