"""Files as items of FROM in bounded queries: DuckDB's readers, with their named arguments."""

from __future__ import annotations

from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.oracle import Oracle
from watersmeet.batch.state import Output, Translated
from watersmeet.dialects.queries import name_of
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.context import Context, first_line
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.values import duckdb_cast

READERS: Final = frozenset({"read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_ndjson", "read_parquet"})

#: Looks at files; what it says of them is not kept.
_FILES: Final = Oracle(external_access=True)


def files_refused(what: str, *, sql: str | None = None, span: Span | None = None) -> Error:
    """FILES_NOT_ALLOWED for what reads files of the machine."""
    return error(
        "FILES_NOT_ALLOWED",
        f"{what} is not possible on a connection that may not read files",
        sql=sql,
        span=span,
        hint="Connect with allow_files = True.",
    )


def read_file(name: str, node: exp.Expression, ctx: Context) -> Translated:
    """`name('path', option = value, …)` as a query. INVALID_VALUE if DuckDB can't read the file."""
    arguments = []
    for argument in node.expressions:
        if isinstance(argument, exp.EQ) and isinstance(argument.this, exp.Column):
            option = exp.to_identifier(name_of(argument.this.this))
            arguments.append(exp.EQ(this=exp.column(option), expression=_constant(argument.expression, ctx)))
        else:
            arguments.append(_constant(argument, ctx))
    call = exp.Anonymous(this=name, expressions=arguments)
    try:
        found = _FILES.columns_of(call.sql(dialect="duckdb"))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
    outputs, picked = [], []
    for i, (column, kind, shown) in enumerate(found):
        if kind is None:
            raise ctx.not_supported(f'column "{column}" of DuckDB\'s type {shown}', node)
        outputs.append(Output(f"c{i}", column.lower(), kind, nullable=True))
        reference = exp.column(exp.to_identifier(column, quoted=True))
        picked.append(exp.alias_(duckdb_cast(reference, kind), f"c{i}", quoted=True))
    query = exp.Select(expressions=picked, from_=exp.From(this=exp.Table(this=call)))
    return Translated(query, tuple(outputs))


def _constant(node: exp.Expression, ctx: Context) -> exp.Expression:
    value = bind_value(node, ctx)
    if value.expression.find(exp.Column, exp.Subquery) is not None:
        raise ctx.not_supported("an argument that is not a constant", node)
    return value.expression
