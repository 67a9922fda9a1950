"""Files as items of FROM, in queries that end: DuckDB's readers with their named arguments."""

from __future__ import annotations

from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.bounded import FileScan
from watersmeet.algebra.oracle import Oracle
from watersmeet.binder.context.binding import Environment, check_alias_list, scope_columns
from watersmeet.binder.context.rules import Binding, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext, single
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.context import Context, first_line
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.setfunctions import TableCall

READERS: Final = frozenset({"read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_ndjson", "read_parquet"})

#: Looks at files; what it says of them is not kept.
_FILES: Final = Oracle(external_access=True)


def files_refused(what: str, *, sql: str | None = None, span: Span | None = None) -> Error:
    """FILES_NOT_ALLOWED for an item that reads files of this machine."""
    return error(
        "FILES_NOT_ALLOWED",
        f"{what} is not possible on a connection that may not read files",
        sql=sql,
        span=span,
        hint="Connect with allow_files = True, or serve with --allow-files.",
    )


def bind_files(call: TableCall, item: exp.Expression, env: Environment, binding: Binding, *, allowed: bool) -> Sourced:
    """`name('path', option = value, …)` as an item of FROM. INVALID_VALUE if DuckDB can't read the file."""
    name, arguments, node = call.calls[0]
    if not allowed:
        raise files_refused(f"{name}()", sql=env.text, span=place_of(node))
    ctx = ScopeContext(env.text, Scope(outer=env.outer), "functions in FROM")
    made = exp.Anonymous(this=name, expressions=[_argument(a, ctx) for a in arguments])
    try:
        found = _FILES.columns_of(made.sql(dialect="duckdb"))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
    outputs = []
    for column, kind, shown in found:
        if kind is None:
            raise ctx.not_supported(f'column "{column}" of DuckDB\'s type {shown}', node)
        outputs.append(binding.new_column(column.lower(), kind, nullable=True))
    check_alias_list(call.names, len(outputs), f'table "{call.title}"', env.text, place_of(item))
    tree = FileScan(made, tuple(outputs), tuple(column for column, _, _ in found))
    return tree, single(call.title, scope_columns(outputs, call.names))


def _argument(node: exp.Expression, ctx: Context) -> exp.Expression:
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column):
        option = exp.to_identifier(name_of(node.this.this))
        return exp.EQ(this=exp.column(option), expression=_constant(node.expression, ctx))
    return _constant(node, ctx)


def _constant(node: exp.Expression, ctx: Context) -> exp.Expression:
    value = bind_value(node, ctx)
    if value.expression.find(exp.Column, exp.Subquery) is not None:
        raise ctx.not_supported("an argument that is not a constant", node)
    return value.expression
