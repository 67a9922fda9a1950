"""Items of FROM that are no stored relation: CTEs, dictionaries, system relations, files.

The rows of CTEs. In a view they are bound again wherever they are named; in a query that ends they are evaluated once,
and may be recursive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.bounded import FileScan, Named, Recursion, SystemScan
from watersmeet.algebra.nodes import Column, Join, KeyPair, Node, Project, Union
from watersmeet.algebra.oracle import Oracle
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.context.binding import (
    Bound,
    Cte,
    Environment,
    OutputColumn,
    check_alias_list,
    check_width,
    scope_columns,
    value_of,
)
from watersmeet.binder.context.rules import Binding, BindQuery, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext, single
from watersmeet.catalog import Relation
from watersmeet.catalog.parts import DEAD_LETTER_COLUMNS
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import Error, Span, error
from watersmeet.expressions.context import Context, duckdb_cast, first_line
from watersmeet.expressions.scalars import bind_value, words_of
from watersmeet.expressions.setfunctions import TableCall
from watersmeet.values.types import Schema


def named_rows(name: str, cte: Cte, binding: Binding, bind: BindQuery) -> Bound:
    """The rows of the query that `name` refers to, with new ids."""
    if not binding.rules.bounded:
        binding.collected.named.setdefault(cte)
        return bind(cte.query, cte.environment, binding)
    if cte.round is not None:
        called, columns = cte.round
        return _read(Named(called, None, columns), [OutputColumn(c) for c in columns], binding)
    found = binding.collected.named.get(cte)
    if found is None:
        found = _recursion(name, cte, binding, bind) if cte.recursive else bind(cte.query, cte.environment, binding)
        made = Named(binding.new_name(), found.relation, found.relation.columns)
        binding.collected.named[cte] = found = replace(found, relation=made)
    assert isinstance(found.relation, Named)
    return _read(found.relation, found.outputs, binding)


def _read(named: Named, outputs: Sequence[OutputColumn], binding: Binding) -> Bound:
    columns = tuple(binding.new_column(c.name, c.type, c.nullable) for c in named.columns)
    found = (replace(o, column=c) for o, c in zip(outputs, columns, strict=True))
    return Bound(replace(named, outputs=columns), tuple(found))


def _recursion(name: str, cte: Cte, binding: Binding, bind: BindQuery) -> Bound:
    """`anchor UNION [ALL] step`: the step reads the columns of the anchor."""
    node, env = cte.query, cte.environment
    assert isinstance(node, exp.Union)
    for part in ("with_", "order", "limit", "offset"):
        if node.args.get(part):
            raise env.not_supported(
                f"{words_of(part)} of a recursive query",
                node.args[part],
                hint="Write it in the query that reads the recursive one.",
            )
    anchor = bind(node.this, env, binding)
    columns = tuple(binding.new_column(c.name, c.type, nullable=True) for c in anchor.relation.columns)
    called = binding.new_name()
    round_ = Cte(node, cte.names, env, round=(called, columns))
    step = bind(node.expression, Environment(env.text, {**env.ctes, name: round_}, env.outer), binding)
    check_width("UNION", len(anchor.outputs), len(step.outputs), place_of(node.expression), env.text)
    made = Recursion(
        anchor.relation, _converted(step.relation, columns, binding), called, bool(node.args.get("distinct")), columns
    )
    return Bound(made, tuple(replace(o, column=c) for o, c in zip(anchor.outputs, columns, strict=True)))


def _converted(step: Node, columns: tuple[Column, ...], binding: Binding) -> Node:
    """The rows of a step, with the types of the anchor."""
    if all(s.type == c.type for s, c in zip(step.columns, columns, strict=True)):
        return step
    outputs = tuple(binding.new_column(c.name, c.type, nullable=True) for c in columns)
    values = (duckdb_cast(value_of(c).expression, o.type) for c, o in zip(step.columns, outputs, strict=True))
    return Project(step, outputs, tuple(Scalar(v, o.type) for v, o in zip(values, outputs, strict=True)))


def with_cache(source: Node, relation: Relation, binding: Binding, scan: Callable[[Relation], Node]) -> Node:
    """The content of a dictionary: its cache stream, and the rows of `source` whose keys the cache lacks."""
    dictionary = relation.dictionary
    assert dictionary is not None
    if not dictionary.stream:
        return source
    stream = binding.catalog.relations[dictionary.stream]
    names = [c.name for c in relation.columns]
    cached, other = (
        exactly(tree, [c for n in names for c in tree.columns if c.name == n]) for tree in (scan(stream), scan(stream))
    )
    places = [names.index(k) for k in relation.primary_key]
    keys = tuple(KeyPair(read(source.columns[i]), read(other.columns[i])) for i in places)
    rest = Join(source, other, "anti", keys)
    outputs = tuple(
        binding.new_column(c.name, c.type, c.nullable or o.nullable)
        for c, o in zip(source.columns, cached.columns, strict=True)
    )
    return Union((cached, rest), outputs)


DEAD_LETTERS: Final = "watersmeet.dead_letters"

#: The columns of each system relation.
SYSTEM_RELATIONS: Final[dict[str, Schema]] = {DEAD_LETTERS: DEAD_LETTER_COLUMNS}

#: Names that other systems have for them. Timeplus, "Dead letter queue".
_OTHER_NAMES: Final = {"system.mat_view_dlq": DEAD_LETTERS}


def system_relation(node: exp.Table) -> str | None:
    """The name of the system relation that an item of FROM names, if no relation of the catalog has that name."""
    schema = node.args.get("db")
    if schema is None or not isinstance(node.this, exp.Identifier):
        return None
    name = f"{name_of(schema)}.{name_of(node.this)}".lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in SYSTEM_RELATIONS else None


def bind_system(
    name: str, alias: str | None, names: tuple[str, ...], node: exp.Table, env: Environment, binding: Binding
) -> Sourced:
    """The rows of a system relation. FEATURE_NOT_SUPPORTED in a query that does not end: nobody reports its changes.

    alias, names: of the item and of its columns, as they are written.
    """
    if not binding.rules.bounded:
        raise env.not_supported(
            f"{name} in {binding.rules.query_called}",
            node,
            detail="A system relation shows what is so now. It has no changes that could be followed.",
            hint="Read it in a SELECT that ends.",
        )
    binding.read_system(name)
    outputs = tuple(binding.new_column(c.name, c.type, c.nullable) for c in SYSTEM_RELATIONS[name])
    title = alias or name_of(node.this)
    check_alias_list(names, len(outputs), f'table "{title}"', env.text, place_of(node))
    return SystemScan(name, outputs), single(title, scope_columns(outputs, names))


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
