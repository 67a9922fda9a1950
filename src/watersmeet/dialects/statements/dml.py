"""Reads INSERT, UPDATE, DELETE, and COPY to and from files and clients of a server (PostgreSQL, "COPY")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from sqlglot import exp

from watersmeet.catalog.roles import ADMIN
from watersmeet.dialects.tree.nodes import KnownTable, retyped
from watersmeet.dialects.tree.queries import is_folded, name_of, node_span, query_of
from watersmeet.dialects.tree.statements import (
    Delete,
    Insert,
    MergeAction,
    MergeInto,
    Name,
    NamedChange,
    OnConflict,
    Refused,
    Select,
    Statement,
    Update,
    WithChanges,
)
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of
from watersmeet.errors import Span, error

_STREAMS: Final = ("STDIN", "STDOUT", "PROGRAM")
#: The formats of rows that COPY sends to clients and receives from them.
STREAM_FORMATS: Final = ("text", "csv", "binary")


@dataclass(frozen=True, kw_only=True)
class Copy(Statement):
    """The fields of COPY … FROM and COPY … TO. The names in `options` and `spans` are in lower case."""

    columns: tuple[Name, ...]
    path: str
    path_span: Span
    options: Mapping[str, str]
    spans: Mapping[str, Span]


@dataclass(frozen=True, kw_only=True)
class CopyFrom(Copy):
    """`COPY table [(columns)] FROM 'path' [(options)]`."""

    takes: ClassVar[str | None] = ADMIN
    once: ClassVar[bool] = True

    table: Name


@dataclass(frozen=True, kw_only=True)
class CopyTo(Copy):
    """`COPY {table [(columns)] | (query)} TO 'path' [(options)]`."""

    takes: ClassVar[str | None] = ADMIN

    table: Name | None
    query: exp.Expression | None


@dataclass(frozen=True, kw_only=True)
class CopyIn(Statement):
    """`COPY table [(columns)] FROM STDIN [options]`. options: their names are in lower case. stream: the span of
    STDIN.
    """

    takes: ClassVar[str | None] = None

    table: Name
    columns: tuple[Name, ...]
    options: Mapping[str, str]
    stream: Span


@dataclass(frozen=True, kw_only=True)
class CopyOut(Statement):
    """`COPY {table [(columns)] | (query)} TO STDOUT [options]`. stream: the span of STDOUT."""

    takes: ClassVar[str | None] = None

    table: Name | None
    columns: tuple[Name, ...]
    query: Statement | None
    options: Mapping[str, str]
    stream: Span


def read_copy(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads COPY; the cursor stands after COPY."""
    query: Statement | None = None
    table: Name | None = None
    columns: tuple[Name, ...] = ()
    if cursor.take("("):
        tokens = cursor.until(")")
        cursor.expect(")")
        query = cursor.statement(tokens)
    else:
        table = cursor.relation_name()
        columns = cursor.names() if cursor.at("(") else ()
    comes = query is None and cursor.take("FROM")
    if not comes:
        cursor.expect("TO")
    span = span_of(cursor.rest[:1] or cursor.tokens)
    if comes and cursor.take("STDIN"):
        assert table is not None
        return CopyIn(**base, table=table, columns=columns, options=_stream_options(cursor), stream=span)
    if not comes and cursor.take("STDOUT"):
        options = _stream_options(cursor)
        return CopyOut(**base, table=table, columns=columns, query=query, options=options, stream=span)
    if any(map(cursor.at, _STREAMS)):
        feature = f"COPY {'FROM' if comes else 'TO'} {cursor.rest[0].text.upper()}"
        refused = not_supported(feature, cursor.text, span, hint="Name a file.")
        return Refused(**base, error=refused)
    if query is not None and not isinstance(query, Select):
        raise cursor.error(detail="COPY to a file takes a query.")
    path = cursor.string()
    cursor.take("WITH")
    spans: dict[str, Span] = {}
    options = read_copy_options(cursor, spans) if cursor.at("(") else {}
    cursor.end()
    base = {**base, "path": path, "path_span": span, "options": options, "spans": spans, "columns": columns}
    if comes:
        assert table is not None
        return CopyFrom(**base, table=table)
    return CopyTo(**base, table=table, query=None if query is None else query.query)


def _stream_options(cursor: Cursor) -> Mapping[str, str]:
    """Reads `(FORMAT csv, …)`, or the older words: `BINARY`, `CSV HEADER`, `DELIMITER ','`, `NULL ''`."""
    cursor.take("WITH")
    if cursor.at("("):
        options = read_copy_options(cursor, {})
        cursor.end()
        return options
    options = {}
    while not cursor.done:
        word = cursor.word().name
        if word in STREAM_FORMATS:
            options["format"] = word
        elif word == "header":
            options["header"] = "true"
        elif word in ("delimiter", "null", "quote"):
            cursor.take("AS")
            options[word] = cursor.string()
        else:
            cursor.index -= 1
            raise cursor.error()
    return options


def read_copy_options(cursor: Cursor, spans: dict[str, Span]) -> dict[str, str]:
    """Reads `(NAME [=] [value], …)`. Names become lower case; a missing value is `true`."""
    cursor.expect("(")
    options: dict[str, str] = {}
    while not cursor.at(")"):
        start = cursor.index
        name = cursor.word()
        if name.name in options:
            raise cursor.error_at(name.span, "CONNECTOR_OPTION", f'option "{name.name}" is given twice')
        cursor.take("=")
        is_bare = cursor.at(",") or cursor.at(")")
        options[name.name] = "true" if is_bare else _read_text(cursor)
        spans[name.name] = span_of(cursor.tokens[start : cursor.index])
        if not cursor.take(","):
            break
    cursor.expect(")")
    return options


def _read_text(cursor: Cursor) -> str:
    """Reads a value; a string may contain any text."""
    token = cursor.current
    if token is not None and token.token_type.name == "STRING":
        return cursor.string()
    return read_value(cursor)


#: The clauses whose written name differs from that in the tree.
_CLAUSES: Final = {"conflict": "ON CONFLICT", "with_": "WITH", "limit": "LIMIT", "order": "ORDER BY"}


def allow(tree: exp.Expression, base: dict[str, Any], *allowed: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a clause that is not in `allowed`."""
    for name, value in tree.args.items():
        if value and name not in allowed:
            shown = _CLAUSES.get(name, name.strip("_").upper())
            span = node_span(value) if isinstance(value, exp.Expression) else node_span(tree)
            hint = "A row replaces the one with its key: leave the clause out." if name == "conflict" else None
            raise not_supported(f"{shown} in {type(tree).__name__.upper()}", base["text"], span, hint=hint)


def target_name(tree: exp.Expression | None, base: dict[str, Any]) -> tuple[Name, str | None]:
    """The table that a statement writes, and its alias. Raises SYNTAX_ERROR, FEATURE_NOT_SUPPORTED."""
    text = base["text"]
    if not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier):
        raise error("SYNTAX_ERROR", "the name of a table was expected", sql=text, span=base["span"])
    allow(tree, base, "this", "alias", "db")
    alias, schema = tree.args.get("alias"), tree.args.get("db")
    name = plain_name(tree.this, node_span(tree.this) or base["span"], name_of(schema) if schema else None)
    return name, name_of(alias.this) if alias else None


def plain_name(identifier: exp.Expression, span: Span, schema: str | None = None) -> Name:
    """The name in an identifier."""
    return Name(name_of(identifier), span, is_folded(identifier), schema)


def column_name(tree: exp.Expression, span: Span) -> Name:
    """The name of a column, or of a field in one: `address.city`."""
    if not isinstance(tree, exp.Dot):
        return plain_name(tree, span)
    first, *others = tree.flatten()
    return replace(plain_name(first, span), path=tuple(name_of(p) for p in others))


def read_dml(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads INSERT, UPDATE and DELETE; the cursor stands at the first word."""
    found = dml_of(query_of(cursor), base)
    if found is None:
        raise cursor.error()
    return found


def dml_of(tree: exp.Expression, base: dict[str, Any]) -> Statement | None:
    """INSERT, UPDATE, DELETE or MERGE, also after WITH or in it, from its tree; None for a query."""
    clause = tree.args.get("with_")
    if clause is not None and any(isinstance(query.this, exp.DML) for query in clause.expressions):
        return _with_changes(tree, clause, base)
    if not isinstance(tree, exp.DML):
        return None
    return _change(tree, base)


def _change(tree: exp.DML, base: dict[str, Any]) -> Insert | Update | Delete | MergeInto:
    """A statement whose WITH has only queries."""
    _place_with(tree, base)
    if isinstance(tree, exp.Insert):
        return _insert(tree, base)
    if isinstance(tree, exp.Update):
        return _update(tree, base)
    if isinstance(tree, exp.Delete):
        return _delete(tree, base)
    if isinstance(tree, exp.Merge):
        return _merge(tree, base)
    raise not_supported(type(tree).__name__.upper(), base["text"], node_span(tree) or base["span"])


def _with_changes(tree: exp.Expression, clause: exp.With, base: dict[str, Any]) -> WithChanges:
    """A statement with changes in WITH. Each part keeps the queries of WITH before it, unless they run once.

    Raises DUPLICATE_OBJECT, and FEATURE_NOT_SUPPORTED for a change without RETURNING that is read.
    """
    changes: dict[str, NamedChange] = {}
    queries: list[exp.Expression] = []
    known: set[str] = set()
    tree.set("with_", None)
    for number, part in enumerate(clause.expressions):
        name = plain_name(part.args["alias"].this, node_span(part.args["alias"]) or base["span"])
        if name.name in known:
            message = f'WITH query name "{name.name}" specified more than once'
            raise error("DUPLICATE_OBJECT", message, sql=base["text"], span=name.span)
        known.add(name.name)
        node = part.this
        _read_changes(node, changes, base)
        later = [*(one.this for one in clause.expressions[number + 1 :]), tree]
        if not isinstance(node, exp.DML) and not _runs_once(part, name.name, later):
            queries.append(part)
            continue
        _add_queries(node, queries, recursive=clause.args.get("recursive"))
        columns = tuple(name_of(column) for column in part.args["alias"].args.get("columns") or ())
        made = _change(node, base) if isinstance(node, exp.DML) else Select(**base, query=node)
        changes[name.name] = NamedChange(name=name, columns=columns, statement=made)
    _read_changes(tree, changes, base)
    _add_queries(tree, queries, recursive=clause.args.get("recursive"))
    main = _change(tree, base) if isinstance(tree, exp.DML) else Select(**base, query=tree)
    return WithChanges(**base, changes=tuple(changes.values()), main=main)


def _runs_once(part: exp.CTE, name: str, later: Sequence[exp.Expression]) -> bool:
    """Whether a query of WITH runs once for all its readers, because another run could return other rows.

    later: the parts after it, which may read it.
    """
    if any(True for _ in _tables_named(part.this, [name])):
        return False  # it is recursive
    if any(isinstance(c, (exp.Rand, exp.Uuid)) or _is_nextval(c) for c in part.this.find_all(exp.Func)):
        return True
    reads = sum(1 for one in later for _ in _tables_named(one, [name]))
    return bool(part.args.get("materialized")) or (reads > 1 and part.args.get("materialized") is None)


def _is_nextval(call: exp.Expression) -> bool:
    return isinstance(call, exp.Anonymous) and str(call.this).lower() in ("nextval", "setval")


def _add_queries(tree: exp.Expression, queries: Sequence[exp.Expression], *, recursive: bool | None) -> None:
    """Puts queries of WITH before those of a statement's own clause."""
    own = tree.args.get("with_")
    listed = [q.copy() for q in queries] + (list(own.expressions) if own is not None else [])
    if listed:
        recursive = recursive or (own is not None and own.args.get("recursive"))
        tree.set("with_", exp.With(expressions=listed, recursive=recursive))


def _read_changes(tree: exp.Expression, changes: Mapping[str, NamedChange], base: dict[str, Any]) -> None:
    """Makes names of changes in WITH those of relations."""
    for table, name in _tables_named(tree, changes):
        change = changes[name].statement
        if not isinstance(change, Select) and change.returning is None:
            message = f'WITH query "{name}" does not have a RETURNING clause'
            span = node_span(table) or base["span"]
            raise error("FEATURE_NOT_SUPPORTED", message, sql=base["text"], span=span)
        if table.args.get("alias") is None:
            table.set("alias", exp.TableAlias(this=table.this.copy()))
        retyped(table, KnownTable, relation_id=changes[name].id)


def _tables_named(tree: exp.Expression, names: Collection[str]) -> Iterator[tuple[exp.Table, str]]:
    """The tables in a statement that name a part of the WITH before it, with their names."""
    target = tree.this if isinstance(tree, exp.DML) else None
    target = target.this if isinstance(target, exp.Schema) else target
    for table in list(tree.find_all(exp.Table)):
        if table is target or table.args.get("db") or not isinstance(table.this, exp.Identifier):
            continue
        name = name_of(table.this)
        if name in names and name not in _named_around(table, tree):
            yield table, name


def _place_with(tree: exp.DML, base: dict[str, Any]) -> None:
    """Replaces each name of a query in WITH by a subquery that has the clause of its own."""
    clause = tree.args.get("with_")
    if clause is None:
        return
    for query in clause.expressions:
        if isinstance(query.this, exp.DML):
            what = f"{type(query.this).__name__.upper()} in WITH below another statement"
            raise not_supported(what, base["text"], node_span(query.this) or base["span"])
    tree.set("with_", None)
    names = {name_of(query.args["alias"].this) for query in clause.expressions}
    for table, _ in _tables_named(tree, names):
        query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Table(this=table.this.copy())))
        query.set("with_", clause.copy())
        alias = table.args.get("alias") or exp.TableAlias(this=table.this.copy())
        joins, laterals = table.args.get("joins"), table.args.get("laterals")
        table.replace(exp.Subquery(this=query, alias=alias.copy(), joins=joins, laterals=laterals))


def _named_around(table: exp.Table, tree: exp.Expression) -> set[str]:
    """The names of queries in the clauses WITH of the queries around a table, up to `tree`."""
    found: set[str] = set()
    node: exp.Expression | None = table
    while node is not None and node is not tree:
        node = node.parent
        if node is not None and (clause := node.args.get("with_")) is not None:
            found |= {name_of(query.args["alias"].this) for query in clause.expressions}
    return found


def _returning(tree: exp.Expression) -> tuple[exp.Expression, ...] | None:
    clause = tree.args.get("returning")
    return tuple(clause.expressions) if clause else None


def _insert(tree: exp.Insert, base: dict[str, Any]) -> Insert:
    allow(tree, base, "this", "expression", "returning", "default", "conflict")
    columns: tuple[Name, ...] = ()
    target = tree.this
    overriding = target.args.get("overriding")
    target.set("overriding", None)
    if isinstance(target, exp.Schema):
        columns = tuple(column_name(c, node_span(c) or base["span"]) for c in target.expressions)
        target = target.this
    name, alias = target_name(target, base)
    query = tree.expression
    if tree.args.get("default") or query is None:  # DEFAULT VALUES: other columns are omitted
        if columns:
            raise error("SYNTAX_ERROR", "DEFAULT VALUES fills all columns", sql=base["text"], span=columns[0].span)
        query = exp.Values(expressions=[exp.Tuple(expressions=[exp.column("DEFAULT")])])
    return Insert(
        **base,
        table=name,
        columns=columns,
        query=query,
        returning=_returning(tree),
        conflict=_conflict(tree.args.get("conflict"), name, alias, base),
        overriding=overriding,
    )


def _conflict(tree: exp.Expression | None, table: Name, alias: str | None, base: dict[str, Any]) -> OnConflict | None:
    """The clause ON CONFLICT. Raises FEATURE_NOT_SUPPORTED for a partial index, an expression, and other systems'
    clauses.
    """
    if tree is None:
        return None
    text = base["text"]
    action = tree.args["action"].name.upper() if tree.args.get("action") else ""
    if tree.args.get("duplicate") or action not in ("DO NOTHING", "DO UPDATE"):
        raise not_supported("this form of ON CONFLICT", text, node_span(tree) or table.span, hint=_ON_CONFLICT)
    if (predicate := tree.args.get("index_predicate")) is not None:
        raise not_supported("ON CONFLICT with WHERE before its action", text, node_span(predicate))
    columns = []
    for item in tree.args.get("conflict_keys") or ():
        column = item.this if isinstance(item, exp.Ordered) else item
        if not isinstance(column, (exp.Column, exp.Identifier)):
            raise not_supported("ON CONFLICT of an expression", text, node_span(item))
        identifier = column.this if isinstance(column, exp.Column) else column
        columns.append(plain_name(identifier, node_span(identifier) or table.span))
    named = tree.args.get("constraint")
    where = tree.args.get("where")
    if action == "DO UPDATE" and not columns and named is None:
        detail = "ON CONFLICT DO UPDATE requires inference specification or constraint name"
        raise error("SYNTAX_ERROR", detail, sql=text, span=node_span(tree) or table.span, hint=_ON_CONFLICT)
    return OnConflict(
        span=columns[0].span if columns else table.span,
        alias=alias,
        columns=tuple(columns),
        constraint=None if named is None else plain_name(named, node_span(named) or table.span),
        assignments=None if action == "DO NOTHING" else tuple(_assignments(tree, table, base)),
        where=where.this if where else None,
    )


#: A hint with the whole clause.
_ON_CONFLICT: Final = "Write ON CONFLICT (key) DO NOTHING, or ON CONFLICT (key) DO UPDATE SET a = EXCLUDED.a."


def _assigned(item: exp.Expression) -> list[exp.Expression]:
    """The assignments of `(a, b) = (x, y)`, `… = ROW(x, y)` and `… = (SELECT x, y …)`; other items of SET stay."""
    columns, values = item.this, item.args.get("expression")
    if not isinstance(columns, exp.Tuple):
        if not isinstance(columns, exp.Paren):
            return [item]
        columns = exp.Tuple(expressions=[columns.this])
    if isinstance(values, exp.Subquery) and isinstance(values.this, exp.Select):
        found = [_only(values, n) for n in range(len(values.this.expressions))]
    elif isinstance(values, exp.Tuple) or (isinstance(values, exp.Anonymous) and str(values.this).lower() == "row"):
        found = values.expressions
    elif isinstance(values, exp.Paren):
        found = [values.this]
    else:
        return [item]
    if len(columns.expressions) != len(found) or any(v.is_star for v in found):
        return [item]
    return [exp.EQ(this=c, expression=v) for c, v in zip(columns.expressions, found, strict=True)]


def _only(subquery: exp.Subquery, number: int) -> exp.Expression:
    """The subquery with only one of its columns."""
    if subquery.this.args.get("distinct"):
        return subquery
    made = subquery.copy()
    made.this.set("expressions", [made.this.expressions[number]])
    return made


def _update(tree: exp.Update, base: dict[str, Any]) -> Update:
    allow(tree, base, "this", "expressions", "where", "returning", "from_")
    name, alias = target_name(tree.this, base)
    where, sources = tree.args.get("where"), tree.args.get("from_")
    return Update(
        **base,
        table=name,
        alias=alias,
        assignments=tuple(_assignments(tree, name, base)),
        where=where.this if where else None,
        returning=_returning(tree),
        sources=() if sources is None else (sources.this,),
    )


def _assignments(tree: exp.Expression, name: Name, base: dict[str, Any]) -> Iterator[tuple[Name, exp.Expression]]:
    """The assignments of SET. Raises FEATURE_NOT_SUPPORTED for other forms."""
    for item in (one for written in tree.expressions for one in _assigned(written)):
        target = item.this
        if not isinstance(item, exp.EQ) or not isinstance(target, exp.Column):
            hint = "Write SET a = x, b = y, or SET (a, b) = (x, y)."
            raise not_supported("this form of SET", base["text"], node_span(item) or name.span, hint=hint)
        yield plain_name(target.this, node_span(target.this) or Span(0, 0)), item.expression


def _delete(tree: exp.Delete, base: dict[str, Any]) -> Delete:
    allow(tree, base, "this", "where", "returning", "using")
    name, alias = target_name(tree.this, base)
    where = tree.args.get("where")
    return Delete(
        **base,
        table=name,
        alias=alias,
        where=where.this if where else None,
        returning=_returning(tree),
        sources=tuple(tree.args.get("using") or ()),
    )


def read_merge(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads MERGE; the cursor stands at this word."""
    tree = query_of(cursor)
    if not isinstance(tree, exp.Merge):
        raise cursor.error()
    return _merge(tree, base)


def _merge(tree: exp.Merge, base: dict[str, Any]) -> MergeInto:
    allow(tree, base, "this", "using", "on", "whens", "returning")
    name, alias = target_name(tree.this, base)
    return MergeInto(
        **base,
        table=name,
        alias=alias,
        source=tree.args["using"],
        on=tree.args["on"],
        actions=tuple(_action(when, name, base) for when in tree.args["whens"].expressions),
        returning=_returning(tree),
    )


def _action(when: exp.When, table: Name, base: dict[str, Any]) -> MergeAction:
    then, condition = when.args["then"], when.args.get("condition")
    matched = True if when.args["matched"] else False if when.args.get("source") else None
    word = then.name.upper() if isinstance(then, exp.Var) else type(then).__name__.upper()
    wrong = (matched is None and word in ("UPDATE", "DELETE")) or (matched is not None and word == "INSERT")
    if word not in ("UPDATE", "DELETE", "INSERT", "DO NOTHING") or wrong:
        message = f"{word} is not possible in this WHEN clause"
        raise error("SYNTAX_ERROR", message, sql=base["text"], span=node_span(then) or table.span)
    if isinstance(then, exp.Update):
        assignments = tuple(_assignments(then, table, base))
        return MergeAction(matched, "update", condition, assignments)
    if not isinstance(then, exp.Insert):
        return MergeAction(matched, "delete" if word == "DELETE" else "nothing", condition)
    columns, values = then.this, then.expression
    if values is None:  # INSERT VALUES (…), INSERT DEFAULT VALUES
        columns, values = None, columns
    if not isinstance(values, exp.Tuple) or not isinstance(columns, exp.Tuple | None):
        raise not_supported("this form of INSERT in MERGE", base["text"], node_span(then) or table.span)
    names = (
        () if columns is None else tuple(column_name(c.this, node_span(c) or table.span) for c in columns.expressions)
    )
    return MergeAction(matched, "insert", condition, columns=names, values=tuple(values.expressions))
