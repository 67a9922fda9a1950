"""Runs batch queries: turns a syntax tree into rows, read from the database as of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from watersmeet.binder.clauses.timewindows import window_call
from watersmeet.catalog import ARRIVAL, Catalog, MaterializedView, Relation, View
from watersmeet.catalog.roles import OWNER
from watersmeet.database.scans import messages_now, pinned_past, system_relations
from watersmeet.database.sessions.context import Session, check_named
from watersmeet.database.sessions.sequences import calls_sequences, sequence_functions, with_sequences
from watersmeet.database.sessions.snapshots import check_own, lock_rows, past_content
from watersmeet.database.transaction import check_writers
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.dialects.tree.nodes import MarkedSelect, MarkedTable
from watersmeet.dialects.tree.queries import is_marked, name_of
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, error, error_from_json
from watersmeet.expressions.context import has_no_time, in_session_zone, in_zone, zoned_text
from watersmeet.expressions.functions import with_roles
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.kernel.evaluation.isolated import Budget, run_isolated
from watersmeet.store.changes import quoted
from watersmeet.unparsing import QuerySql, map_duckdb_error, needs_isolation, to_duckdb
from watersmeet.unparsing.pushdown import key_reads
from watersmeet.values.times import UTC
from watersmeet.values.types import NUMERIC, TIMESTAMPTZ, VARCHAR, Field, Schema, SqlType, arrow_schema

#: The name under which DuckDB reads Watersmeet's own rows.
_LENT: Final = "_watersmeet_rows"

_INCOMING = "_watersmeet_incoming"
#: The number of attempts in this process before a query that lacks memory runs in a separate process.
_SHARED_RUNS: Final = 2
_NOTHING: Final[Mapping[str, pa.Table]] = MappingProxyType({})


@dataclass(frozen=True)
class BatchQuery(QuerySql):
    """A batch query over the relations of `catalog`, ready to run.

    text: the statement that errors show. exact: the types to which the result must be converted; None for a column that
    already has its type. locks: whether it is FOR UPDATE or FOR SHARE.
    """

    catalog: Catalog
    text: str = ""
    exact: Schema | None = None
    locks: bool = False


def batch_query(session: Session, tree: exp.Expression, text: str, catalog: Catalog | None = None) -> BatchQuery:
    """Binds a query to the relations that can be read now. catalog: another one than the session's.

    Raises errors of the binder with their positions, PERMISSION_DENIED, and errors of stopped views.
    """
    catalog = readable(session.catalog if catalog is None else catalog)
    locks = tree.args.get("locks") or ()
    if locks:
        tree = _without_locks(tree, text)
    tree = with_sequences(session, session.inlined(tree, text), text)
    query = session.cancellation.computing(
        lambda: to_duckdb(tree, catalog, text, session.dialect, files=session.reads_files)
    )
    check_named(session, query.named, text)
    check_running(session, query.depends_on)
    return BatchQuery(
        catalog=catalog, text=text, locks=bool(locks), **vars(query) | {"sql": _with_roles(session, query.sql)}
    )


def _without_locks(tree: exp.Expression, text: str) -> exp.Expression:
    """A query without FOR UPDATE. Raises FEATURE_NOT_SUPPORTED for SKIP LOCKED, which would omit rows."""
    if any(lock.args.get("wait") is False for lock in tree.args["locks"]):
        raise not_supported("SKIP LOCKED", text, None, hint="FOR UPDATE never waits.")
    tree = tree.copy()
    tree.set("locks", None)
    return tree


def _with_roles(session: Session, sql: str) -> str:
    roles = [OWNER if actor is None else actor.name for actor in (session.role, session.user)]
    return with_roles(sql, *roles) if "getvariable" in sql.lower() else sql


def table_tree(relation: Relation, alias: str | None) -> exp.Table:
    """The syntax node that names a relation."""
    tree = exp.Table(
        this=exp.to_identifier(relation.name, quoted=True), db=exp.to_identifier(relation.schema, quoted=True)
    )
    if alias is not None:
        tree.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    return tree


def readable(catalog: Catalog) -> Catalog:
    """The catalog without views that are being filled."""
    filling = tuple(r for r in catalog.relations.values() if not r.ready)
    if not filling:
        return catalog
    return replace(catalog.without({r.id for r in filling}), version=catalog.version, filling=filling)


def fetch(session: Session, query: BatchQuery, *, newest: bool, most_bytes: int = 0) -> pa.Table:
    """The rows of a query. newest: whether tables are read as of the newest transaction and the open one; else all
    relations are read as of one moment. most_bytes: see `rows_of`.

    Errors of DuckDB become errors of Watersmeet: INVALID_VALUE, DIVISION_BY_ZERO and others.
    """
    sql = _with_roles(session, query.sql)
    table = rows_read(session, lambda: reading(session, query, newest=newest), sql, query.text, most_bytes)
    if query.exact is not None:
        table = conformed(table, arrow_schema(query.exact, positional=False))
    return table


def rows_read(
    session: Session,
    opened: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
    sql: str,
    text: str,
    most_bytes: int = 0,
) -> pa.Table:
    """The rows of DuckDB's SQL. opened: returns a new connection that shows the read relations; may be called
    repeatedly.

    A query that DuckDB can't interrupt runs in a separate process if the session has memory for it. So does a query
    that exhausts the memory; other queries that failed for lack of memory run again on new connections.
    """
    if calls_sequences(sql):
        return _rows_with_numbers(session, opened, sql, text, most_bytes)
    content, check = session.database.content, session.cancellation.check
    isolated = bool(session.memory_bytes) and session.cancellation.computing(needs_isolation, sql)
    try:
        for _ in range(_SHARED_RUNS if not isolated else 0):
            with opened() as connection:
                try:
                    with content.movable(connection) if session.memory_bytes else nullcontext():
                        return rows_of(connection, sql, most_bytes)
                except duckdb.InterruptException:
                    check()
                    break  # the query runs in another process now
                except duckdb.OutOfMemoryException:
                    if not session.memory_bytes:
                        raise
            content.move_others()
        with opened() as connection:
            budget = Budget(session.memory_bytes, most_bytes, session.cancellation.within, check)
            return run_isolated(connection, sql, budget)
    except duckdb.Error as cause:
        raise failed_query(cause, text) from cause


def _rows_with_numbers(
    session: Session,
    opened: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
    sql: str,
    text: str,
    most_bytes: int,
) -> pa.Table:
    """The rows of a query that calls functions of sequences: it runs once, in this process."""
    try:
        with opened() as connection, sequence_functions(session, connection, sql) as known:
            return rows_of(connection, known, most_bytes)
    except duckdb.Error as cause:
        raise failed_query(cause, text) from cause


@contextmanager
def reading(
    session: Session, query: BatchQuery, *, newest: bool, external: Mapping[str, pa.Table] = _NOTHING
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection for this thread only, in which the query's relations are views with their names.

    outside: the rows of relations that are not read from the database, with the columns that are read, by id.
    """
    messages = [messages_now(session, query.catalog.relations[t.relation_id], t) for t in query.topics]
    external = {**external, **{i: rows for i, (_, rows) in session.beside.items() if i in query.depends_on}}
    stored = [i for i in query.depends_on if i not in external and query.catalog.relations[i].is_stored]
    with (
        _reader(session, query, stored, newest=newest) as connection,
        session.cancellation.over(connection),
        ExitStack() as views,
    ):
        for topic, rows in zip(query.topics, messages, strict=True):
            columns = query.catalog.relations[topic.relation_id].columns
            views.enter_context(lent(connection, rows, columns, topic.name))
        for relation_id, rows in external.items():
            relation = query.catalog.relations[relation_id]
            views.enter_context(lent(connection, rows, relation.columns, relation.shown))
        with system_relations(session, connection, query.system):
            yield connection


@contextmanager
def _reader(
    session: Session, query: BatchQuery, stored: Sequence[str], *, newest: bool
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that shows relations as of one moment. Raises SERIALIZATION_FAILURE if the open transaction has
    deleted rows that another, committed transaction has also deleted.
    """
    with ExitStack() as entered:
        try:
            past = entered.enter_context(pinned_past(session.database, query.past, query.catalog, query.text))
            if query.locks:
                lock_rows(session.database, session.transaction, query.catalog, stored)
            past += past_content(session.database, session.transaction, query.catalog, stored, newest=newest)
            connection, _ = entered.enter_context(
                session.database.content.reader(
                    query.catalog,
                    stored,
                    newest=newest,
                    owner=session.transaction,
                    lookups=query.lookups,
                    past=past,
                    reads=query.reads,
                )
            )
            check_own(session.database, session.transaction, stored)
        except Error:
            if session.transaction is not None:
                check_writers(session.transaction, session.database.catalog, session.database.log)
            raise
        yield connection


@contextmanager
def lent(
    connection: duckdb.DuckDBPyConnection, rows: pa.Table, wanted: Sequence[Field], name: str = _LENT
) -> Iterator[None]:
    """Inside the block, `rows` are the temporary view `name` with the columns `wanted`, in their types.

    Columns that `rows` lacks are NULL.
    """
    there = frozenset(rows.column_names)
    values = ((c, quoted(c.name) if c.name in there else "NULL") for c in wanted)
    columns = ", ".join(f"CAST({value} AS {c.type.duckdb}) AS {quoted(c.name)}" for c, value in values)
    source = f"{name}_source"
    connection.register(source, rows)
    try:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {quoted(source)}")
        yield
        connection.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
    except duckdb.Error:
        # its transaction has ended, and with it the view unless the view is older; the original error is raised
        with suppress(duckdb.Error):
            connection.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
        raise
    finally:
        with suppress(duckdb.Error):
            connection.unregister(source)


def computed(session: Session, rows: pa.Table, texts: Sequence[str], columns: Schema, sql: str = "") -> pa.Table:
    """The values of the DuckDB expressions `columns` for each of `rows`.

    sql: the statement that errors show.
    """
    listed = ", ".join(f"{t} AS c{i}" for i, t in enumerate(texts))
    table = rows_read(session, lambda: lending(session, {_LENT: rows}), f"SELECT {listed} FROM {_LENT}", sql)
    return conformed(table, arrow_schema(columns, positional=False))


@contextmanager
def lending(session: Session, tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for this thread, in which tables are views by their names."""
    with session.database.content.reader(session.catalog, ()) as (connection, _), session.cancellation.over(connection):
        for name, rows in tables.items():
            connection.register(name, rows)
        try:
            yield connection
        finally:
            for name in tables:
                with suppress(duckdb.Error):
                    connection.unregister(name)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table converted to exactly `schema`, because DuckDB names list items and time zones differently."""
    columns = [c if c.type.equals(f.type) else c.cast(f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def failed_query(cause: duckdb.Error, text: str) -> Error:
    """The Watersmeet error for an error of DuckDB."""
    found = map_duckdb_error(cause, text)
    return found if isinstance(found, Error) else error("INTERNAL_ERROR", str(cause), sql=text)


def described(table: pa.Table, columns: Schema) -> tuple[Schema, pa.Table]:
    """A result of DuckDB with the bound names and types."""
    exact = tuple(_exact(c, table.column(i).type) for i, c in enumerate(columns))
    return exact, conformed(table, arrow_schema(exact, positional=False))


def _exact(column: Field, kind: pa.DataType) -> Field:
    """The column with the precision and scale of its values."""
    if column.type == NUMERIC and pa.types.is_decimal(kind) and (kind.precision, kind.scale) != (38, 10):
        return Field(column.name, SqlType("numeric", kind.precision, kind.scale), column.nullable)
    return column


def runs_on(session: Session, query: exp.Expression) -> bool:
    """True if the query runs until it is stopped, because it is a SELECT STREAM or TABLE, or reads a stream outside
    `table(…)`.
    """
    if isinstance(query, MarkedSelect):
        return True
    continuous = language_named(session.dialect).semantics.continuous
    return (
        is_marked(query)
        if continuous == "marked"
        else continuous == "streams" and _names_stream(query, session.catalog)
    )


def _names_stream(query: exp.Expression, catalog: Catalog) -> bool:
    ctes = {name_of(c.args["alias"].this) for c in query.find_all(exp.CTE)}
    tables = [call.named if (call := window_call(t)) is not None else t for t in query.find_all(exp.Table)]
    return any(
        t is not None
        and isinstance(t.this, exp.Identifier)
        and not (isinstance(t, MarkedTable) and t.is_stored)
        and (t.args.get("db") is not None or name_of(t.this) not in ctes)
        and (found := relation_in_from(t, catalog)) is not None
        and not found.is_external
        for t in tables
    )


def failure_of(session: Session, relation_id: str) -> Error | None:
    """The error that stopped a view or a running query, or None."""
    failed = session.database.log.progress().stopped
    return error_from_json(failed[relation_id]) if relation_id in failed else None


def check_running(session: Session, relation_ids: Iterable[str], *, live: bool = False) -> None:
    """Raises the error of the first stopped view among the relations and those that their plain views read. live:
    whether paused views count, too.
    """
    known = session.catalog.relations
    todo = [i for i in relation_ids if isinstance(known.get(i), (MaterializedView, View))]
    progress = session.database.log.progress()
    if not todo or not (failed := progress.failed if live else progress.stopped):
        return
    while todo:
        relation = known[todo.pop(0)]
        if relation.id in failed:
            found = error_from_json(failed[relation.id])
            if not session.catalog.knows([relation.id]):
                raise error(
                    "VIEW_FAILED",
                    f"{relation.reader} was stopped",
                    detail="The reason is about relations that are not granted to you.",
                )
            if found.condition not in ("VIEW_FAILED", "VIEW_PAUSED"):  # whose message already names the view
                found.message = f"{relation.reader} was stopped: {found.message}"
            raise found
        if isinstance(relation, View):
            todo += relation.depends_on


def last_of_each_key(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The last row of each key, in the order of rows."""
    last = _last(session, relation, rows)
    return rows if last is None else rows.take(last)


def split_by_key(session: Session, relation: Relation, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The last row of each key, and the rows that these rows replace."""
    last = _last(session, relation, rows)
    if last is None:
        return rows, rows.slice(0, 0)
    return rows.take(last), rows.take(np.setdiff1d(np.arange(rows.num_rows), last))


def _last(session: Session, relation: Relation, rows: pa.Table) -> npt.NDArray[np.int64] | None:
    """The positions of the last rows of each key, ascending; None for all."""
    if rows.num_rows < 2:
        return None
    keys = ", ".join(quoted(k) for k in relation.primary_key)
    numbered = rows.select(list(relation.primary_key)).append_column("_n", pa.array(np.arange(rows.num_rows)))
    sql = f'SELECT max("_n") AS n FROM {_INCOMING} GROUP BY {keys}'
    found = rows_read(session, lambda: lending(session, {_INCOMING: numbered}), sql, "")
    if found.num_rows == rows.num_rows:
        return None
    return np.sort(found.column(0).to_numpy())


def rows_with_keys(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows of the table's newest content that have one of the keys of `rows`."""
    columns = ", ".join(f"t.{quoted(c.name)}" for c in relation.columns)
    same = " AND ".join(f"t.{quoted(k)} = i.{quoted(k)}" for k in relation.primary_key)
    schema = arrow_schema(relation.columns, positional=False)
    query = BatchQuery(
        f"SELECT {columns} FROM {quoted(relation.shown)} t SEMI JOIN {_INCOMING} i ON {same}",
        relation.columns,
        session.catalog,
        depends_on=(relation.id,),
        reads=lambda: key_reads(relation, rows),
    )
    return conformed(rows_beside(session, query, rows, relation, _INCOMING), schema)


def rows_beside(session: Session, query: BatchQuery, rows: pa.Table, relation: Relation, name: str) -> pa.Table:
    """The rows of a query over the newest content, in which `rows` of a relation are the view `name`."""

    @contextmanager
    def shown() -> Iterator[duckdb.DuckDBPyConnection]:
        with reading(session, query, newest=True) as connection, lent(connection, rows, relation.columns, name):
            yield connection

    return rows_read(session, shown, query.sql, query.text)


def by_version(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows that are not older than the stored row of their key, in the order of their versions, so that the last
    row of each key stays. Of equal versions the last one written stays, or the first if `keeps_first`.

    Timeplus, "Versioned Mutable Stream".
    """
    version, named = quoted(relation.version), [*relation.primary_key, relation.version]
    stored = rows_with_keys(session, relation, rows.select([c.name for c in relation.columns])).select(named)
    numbered = rows.select(named).append_column("_n", pa.array(np.arange(rows.num_rows)))
    same = " AND ".join(f"a.{quoted(k)} = b.{quoted(k)}" for k in relation.primary_key)
    newer, tie = (">", "DESC") if relation.keeps_first else (">=", "ASC")
    sql = (
        f'SELECT a."_n" FROM _wm_rows a LEFT JOIN _wm_stored b ON {same} '
        f'WHERE b.{version} IS NULL OR a.{version} {newer} b.{version} ORDER BY a.{version}, a."_n" {tie}'
    )
    tables = {"_wm_rows": numbered, "_wm_stored": stored}
    return rows.take(rows_read(session, lambda: lending(session, tables), sql, "").column(0))


def rows_without(session: Session, relation: Relation, rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows whose key occurs in none of `others`."""
    keys = " AND ".join(f"a.{quoted(k)} = b.{quoted(k)}" for k in relation.primary_key)
    sql = f"SELECT a.* FROM _wm_rows a ANTI JOIN _wm_others b ON {keys}"
    tables = {"_wm_rows": rows, "_wm_others": others}
    return rows_read(session, lambda: lending(session, tables), sql, "").cast(rows.schema)


def converted(column: str, source: SqlType, target: SqlType, depth: int = 0, zone: str = UTC) -> str:
    """DuckDB SQL that converts `column` from type `source` to `target`, in the zone of the session. Structs are
    converted by position, as in SQL.
    """
    if zone != UTC and (source != target or source.is_nested) and not has_no_time(source):
        return _in_zone(column, source, target, depth, zone)
    if source == target or not _names_differ(source, target):
        return f"CAST({column} AS {target.duckdb})"
    if source.element is not None and target.element is not None:
        inner = converted(f"e{depth}", source.element, target.element, depth + 1)
        return f"list_transform({column}, lambda e{depth}: {inner})"
    fields = [
        converted(f"struct_extract_at({column}, {i + 1})", s, t, depth)
        for i, ((_, s), (_, t)) in enumerate(zip(source.fields, target.fields, strict=True))
    ]
    packed = ", ".join(f"{quoted(n)} := {f}" for (n, _), f in zip(target.fields, fields, strict=True))
    return f"CASE WHEN {column} IS NOT NULL THEN struct_pack({packed}) END"


def _in_zone(column: str, source: SqlType, target: SqlType, depth: int, zone: str) -> str:
    """Like `converted`, for a type with a time in a zone other than UTC."""
    if source.element is not None and target.element is not None:
        inner = converted(f"e{depth}", source.element, target.element, depth + 1, zone)
        return f"list_transform({column}, lambda e{depth}: {inner})"
    if source.fields:
        fields = [
            converted(f"struct_extract_at({column}, {i + 1})", s, t, depth, zone)
            for i, ((_, s), (_, t)) in enumerate(zip(source.fields, target.fields, strict=True))
        ]
        packed = ", ".join(f"{quoted(n)} := {f}" for (n, _), f in zip(target.fields, fields, strict=True))
        return f"CASE WHEN {column} IS NOT NULL THEN struct_pack({packed}) END"
    with in_zone(zone):
        value = exp.var(column)
        if source == TIMESTAMPTZ and target == VARCHAR:
            return str(zoned_text(value).sql(dialect="duckdb"))
        made = in_session_zone(value, source, target)
    return f"CAST({column} AS {target.duckdb})" if made is None else str(made.sql(dialect="duckdb"))


def _names_differ(source: SqlType, target: SqlType) -> bool:
    if source.element is not None and target.element is not None:
        return _names_differ(source.element, target.element)
    return any(a != b or _names_differ(s, t) for (a, s), (b, t) in zip(source.fields, target.fields, strict=False))


def omitted(relation: Relation, column: Field, now_us: int) -> str:
    """DuckDB SQL for a column that an INSERT at the time `now_us` omits: its default, or NULL."""
    default = relation.defaults.get(column.name)
    if default == ARRIVAL:
        # Timeplus' datetime64(3): milliseconds
        return f"CAST(make_timestamp({now_us // 1000 * 1000}) AS {column.type.duckdb})"
    if default is None and (domain := relation.domains.get(column.name)) is not None:
        default = domain.default
    return f"CAST({default or 'NULL'} AS {column.type.duckdb})"
