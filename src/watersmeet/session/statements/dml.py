"""INSERT, UPDATE, DELETE, MERGE and TRUNCATE of tables, including tables in other databases.

The rows to delete and insert are computed from the newest content. A table of another database is locked and read; the
changes follow the rules of the dialect, and are written in one transaction of its server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import (
    DELTA_COLUMN,
    KEY_COLUMN,
    RECORD_NUMBER,
    RECORD_TIME,
    TOMBSTONE,
    VALUE_COLUMN,
    CapturedTable,
    Merging,
    ReceivedTable,
    Relation,
    Table,
)
from watersmeet.catalog.roles import Privilege
from watersmeet.database.assignment import (
    Target,
    assignable,
    assigned,
    both_images,
    check_given,
    check_types,
    matching,
    merging_of,
    named_targets,
    typed_query,
    without_defaults,
)
from watersmeet.database.committing import own_transaction
from watersmeet.database.reading import (
    BatchQuery,
    batch_query,
    described,
    fetch,
    last_of_each_key,
    lent,
    omitted,
    rows_read,
    rows_with_keys,
    rows_without,
    runs_on,
    split_by_key,
    table_tree,
)
from watersmeet.database.returning import Returned, returned
from watersmeet.database.rowchecks import check_rows, padded, with_serials
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result, rows_result
from watersmeet.database.transaction import Change
from watersmeet.database.writing import (
    accepting,
    apply,
    as_kept,
    coalesced,
    in_order,
    replacement,
    settled,
    upserted,
    with_generated,
)
from watersmeet.dialects.tree.definitions import Merge
from watersmeet.dialects.tree.queries import is_default, node_span
from watersmeet.dialects.tree.statements import Delete, Insert, Name, Statement, Update
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import error
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.session.statements.conflicts import check_rule, resolved
from watersmeet.session.statements.elsewhere import (
    changed_elsewhere,
    delete_elsewhere,
    produce_rows,
    update_elsewhere,
)
from watersmeet.values.types import Schema, arrow_schema


def merge(session: Session, statement: Merge) -> Result:
    """MERGE INTO a table of another system."""
    return replace(_inserted(session, statement.insert, _merging(session, statement)), command="MERGE")


def _merging(session: Session, statement: Merge) -> Merging | None:
    insert = statement.insert
    relation = writable(session, insert.table, statement, "merge into")
    return merging_of(statement, relation, insert.table, insert.columns, insert.query.selects)


def described_merge(session: Session, statement: Merge) -> None:
    """Raises the errors of a MERGE without running it."""
    _merging(session, statement)
    described_change(session, statement.insert)


@dataclass(frozen=True)
class StagedChange:
    """The change of a statement whose rows are known, but not written yet.

    result: that of the statement. old: the rows that it changes or deletes. write: writes the change; the caller holds
    the guard since the rows were read.
    """

    relation: Relation
    result: Result
    write: Callable[[], None]
    old: pa.Table | None = None

    def written(self) -> Result:
        """Writes the change."""
        self.write()
        return self.result


def insert(session: Session, statement: Insert) -> Result:
    """INSERT INTO … VALUES or SELECT."""
    return _inserted(session, statement, None)


def _inserted(session: Session, statement: Insert, merging: Merging | None) -> Result:
    with session.database.guard:
        made = bound_insert(session, statement)
        if not made.query.depends_on:
            rows = incoming_rows(session, made)
            if not _is_external(made.relation):
                return insert_rows(session, made.relation, rows, statement, made.given)
    if made.query.depends_on:
        refresh_read(
            session, made.query.depends_on
        )  # not under the guard: maintenance takes that after this thread's other locks
        with session.database.guard:
            made = bound_insert(session, statement)
            rows = incoming_rows(session, made)
            if not _is_external(made.relation):
                return insert_rows(session, made.relation, rows, statement, made.given)
    return produce_rows(session, made.relation, rows, statement, merging)


def staged_insert(session: Session, statement: Insert) -> StagedChange:
    """The change of an INSERT into a table of the database. The caller holds the guard."""
    made = bound_insert(session, statement)
    if _is_external(made.relation):
        raise not_supported(f"INSERT into {made.relation.title} in WITH", statement.text, statement.table.span)
    return staged_rows(session, made.relation, incoming_rows(session, made), statement, made.given)


def _is_external(relation: Relation) -> bool:
    """Whether inserted rows are written to an external system."""
    return bool(relation.connector) or relation.is_written_externally


@dataclass(frozen=True)
class BoundInsert:
    """An INSERT with its names resolved. target: the relation with the columns that a writer may give. flagged: as in
    `assignment.Filled`.
    """

    relation: Relation
    target: Relation
    targets: tuple[Target, ...]
    query: BatchQuery
    flagged: tuple[str, ...]

    @property
    def given(self) -> list[str]:
        """The columns that have values of the statement."""
        return [t.place[0] for t in self.targets if not t.ignored]


def bound_insert(session: Session, statement: Insert, beside: int = 0) -> BoundInsert:
    """The names of an INSERT, resolved. beside: the number of the query's last columns that are no values of the table.
    The caller holds the guard and runs the INSERT under it.
    """
    relation = writable(session, statement.table, statement, "insert into")
    if runs_on(session, statement.query):
        hint = (
            "Leave STREAM out for the rows that are there now, or write CREATE PUMP name STARTED AS "
            "INSERT … for those that come."
            if session.semantics.continuous == "marked"
            else "Write table(…) for the rows that are there now, or CREATE MATERIALIZED VIEW name INTO stream AS … "
            "for those that come."
        )
        raise not_supported(
            "INSERT of a query that runs until it is stopped", statement.text, statement.span, hint=hint
        )
    target = accepting(relation)
    targets = insert_targets(target, statement)
    filled = without_defaults(statement.query, targets, statement)
    targets = filled.targets
    query = batch_query(session, typed_query(filled.tree, targets), statement.text)
    width = len(query.columns) - filled.beside - beside
    if not statement.columns:
        targets = targets[:width]
    for name in filled.flagged:
        if relation.generated.get(name) is not None:
            raise not_supported(
                f'DEFAULT of column "{name}", which reads other columns, in some rows only',
                statement.text,
                statement.span,
            )
    if statement.overriding == "user":
        identities = {name for name, numbers in relation.serials.items() if numbers.identity}
        targets = tuple(replace(t, ignored=t.place[0] in identities) for t in targets)
    for name in {t.place[0] for t in targets} if statement.overriding is None else ():
        if name in relation.serials and relation.serials[name].identity == "always":
            raise error_at(
                statement,
                statement.span,
                "GENERATED_ALWAYS",
                f'cannot insert a non-DEFAULT value into column "{name}"',
                detail=f'Column "{name}" is an identity column defined as GENERATED ALWAYS.',
                hint="Use OVERRIDING SYSTEM VALUE to override.",
            )
    _check_width(width, len(targets), statement)
    check_types(query.columns[:width], targets, statement)
    return BoundInsert(relation, target, targets, query, filled.flagged)


def incoming_rows(session: Session, made: BoundInsert, beside: Schema = ()) -> pa.Table:
    """The rows of an INSERT. beside: the last columns of the query, which are no values of the table."""
    relation, target, targets, query = made.relation, made.target, made.targets, made.query
    named = [t.column.name for t in targets]
    has_all = VALUE_COLUMN in named if relation.topic is not None else DELTA_COLUMN in named
    target = target if has_all else relation  # without signs, each row of a key is a version
    now_us = session.database.clock.now_us()
    return fetch(session, assignable(query, targets, target, now_us, made.flagged, beside), newest=True)


def insert_rows(
    session: Session, relation: Relation, incoming: pa.Table, statement: Insert, given: Collection[str]
) -> Result:
    """Inserts rows that have the relation's columns, and perhaps flags of `with_serials`. given: the columns that have
    values of the statement. The caller holds the guard.
    """
    return staged_rows(session, relation, incoming, statement, given).written()


def staged_rows(
    session: Session,
    relation: Relation,
    incoming: pa.Table,
    statement: Insert,
    given: Collection[str],
    asked: Returned | None = None,
) -> StagedChange:
    """Like `insert_rows`, without writing. asked: what RETURNING asks for; its values are more columns of the rows."""
    left_out = [c.name for c in relation.columns if c.name not in given]
    incoming = with_serials(session, relation, incoming, left_out)
    incoming = with_generated(relation, incoming, statement, left_out)
    incoming = coalesced(session, relation, incoming, given, statement)
    incoming = as_kept(relation, settled(relation, incoming, statement))
    check_rows(relation, incoming, statement)
    incoming, rejected = in_order(session, relation, incoming)
    asked = asked or returned(session, relation, statement)
    beside = [] if asked is None else [c.name for c in asked.beside]
    rows = incoming.select([*(c.name for c in relation.columns), *beside])
    incoming = incoming.drop_columns(beside)
    if statement.conflict is not None:
        return _inserted_or_updated(session, relation, rows, statement)
    if asked is not None and relation.primary_key and not relation.rejects_duplicates:
        rows = last_of_each_key(session, relation, rows)
    result = result_of("INSERT", session, relation, statement, asked, rows)

    def write() -> None:
        with located(statement, statement.table.span):
            change = upserted(session, relation, incoming)
        apply(session, relation, change, rejected=rejected)

    return StagedChange(relation, result, write)


def _inserted_or_updated(session: Session, relation: Relation, rows: pa.Table, statement: Insert) -> StagedChange:
    """Runs an INSERT with ON CONFLICT. Its primary key is as in PostgreSQL: a row never replaces another silently."""
    found = resolved(session, relation, rows, statement)
    assert isinstance(relation, Table)
    strict = replace(relation, rejects_duplicates=bool(relation.primary_key))
    alias = None if statement.conflict is None else statement.conflict.alias
    asked = returned(session, relation, statement)
    asked = None if asked is None else replace(asked, alias=alias)
    result = result_of("INSERT", session, relation, statement, asked, found.shown)

    def write() -> None:
        with own_transaction(session) if found.old.num_rows and found.inserted.num_rows else nullcontext():
            if found.inserted.num_rows:
                apply(session, strict, Change(found.inserted))
            if found.old.num_rows:
                apply(session, strict, replacement(found.old, found.new), updated=(found.old, found.new))

    return StagedChange(relation, result, write, found.old)


def delete(session: Session, statement: Delete) -> Result:
    """DELETE FROM."""
    there = changed_elsewhere(session, statement.table)
    if there is not None:
        require_change(session, there, statement)
        return delete_elsewhere(session, there, statement)
    with session.database.guard:
        if _writes_tombstones(session, statement):
            return _buried(session, statement)
        return staged_delete(session, statement).written()


def staged_delete(session: Session, statement: Delete) -> StagedChange:
    """The change of a DELETE from a table of the database. The caller holds the guard."""
    relation = writable(session, statement.table, statement, "delete from", changing=True)
    asked = returned(session, relation, statement)
    old, beside, asked = deleted_rows(session, relation, statement, asked)
    result = result_of("DELETE", session, relation, statement, asked, old, beside)
    change = Change(old, np.full(old.num_rows, -1, np.int64))
    return StagedChange(relation, result, lambda: apply(session, relation, change), old)


def deleted_rows(
    session: Session, relation: Relation, statement: Delete, asked: Returned | None = None, *, repeated: bool = False
) -> tuple[pa.Table, pa.Table, Returned | None]:
    """The rows that a DELETE removes, the values of RETURNING of other relations, and RETURNING with their types. The
    caller holds the guard.
    """
    values = asked.values if asked else ()
    query = matching(
        session, relation, statement.alias, statement.where, values, statement, statement.sources, repeated=repeated
    )
    width = len(relation.columns)
    rows = fetch(session, replace(query, exact=(*relation.columns, *query.columns[width:])), newest=True)
    old = pa.Table.from_arrays(rows.columns[:width], schema=arrow_schema(relation.columns, positional=False))
    return old, rows.select(range(width, rows.num_columns)), asked and asked.bound(query)


def _writes_tombstones(session: Session, statement: Update | Delete) -> bool:
    """Whether the statement is a DELETE that writes records to a topic."""
    found = session.find(statement.table) if isinstance(statement, Delete) else None
    return session.semantics.changes_topics == "records" and found is not None and found.topic is not None


def _buried(session: Session, statement: Delete) -> Result:
    """DELETE FROM a topic writes one tombstone for each key of the matching records, as in Lenses.

    Raises FEATURE_NOT_SUPPORTED for RETURNING.
    """
    if statement.returning is not None:
        raise not_supported(
            "RETURNING of a DELETE from a topic", statement.text, statement.span, detail="It writes tombstones."
        )
    topic = writable(session, statement.table, statement, "delete from")
    key, tombstone = (exp.column(exp.to_identifier(n, quoted=True)) for n in (KEY_COLUMN, TOMBSTONE))
    query = (
        exp.select(key, exp.null())
        .distinct()
        .from_(table_tree(topic, statement.alias))
        .where(exp.not_(tombstone), *filter(None, [statement.where]))
    )
    columns = tuple(Name(n, statement.span) for n in (KEY_COLUMN, VALUE_COLUMN))
    made = Insert(
        text=statement.text, sql=statement.sql, span=statement.span, table=statement.table, columns=columns, query=query
    )
    return replace(insert(session, made), command="DELETE")


def _check_stars(values: Sequence[exp.Expression], statement: Statement) -> None:
    """Raises SYNTAX_ERROR for `SET a = *`, which the parser accepts as a select item."""
    for value in values:
        if value.is_star:
            raise error_at(
                statement,
                node_span(value) or statement.span,
                "SYNTAX_ERROR",
                "* is only possible as an item of the select list",
            )


def update(session: Session, statement: Update) -> Result:
    """UPDATE … SET."""
    there = changed_elsewhere(session, statement.table)
    if there is not None:
        require_change(session, there, statement)
        return update_elsewhere(session, there, statement)
    with session.database.guard:
        return staged_update(session, statement).written()


def staged_update(session: Session, statement: Update) -> StagedChange:
    """The change of an UPDATE of a table of the database. The caller holds the guard."""
    relation = writable(session, statement.table, statement, "update", changing=True)
    asked = returned(session, relation, statement)
    images = update_images(session, relation, statement, asked)
    result = result_of("UPDATE", session, relation, statement, images.asked, images.new, images.beside)
    return StagedChange(relation, result, lambda: images.write(session, relation, statement), images.old)


@dataclass(frozen=True)
class Images:
    """The rows that an UPDATE changes, before and after it. beside: the values of RETURNING of other relations. moves:
    whether it may change primary keys.
    """

    old: pa.Table
    new: pa.Table
    beside: pa.Table
    asked: Returned | None
    moves: bool

    def write(self, session: Session, relation: Relation, statement: Update) -> None:
        """Writes the new rows. Raises UNIQUE_VIOLATION."""
        if self.moves:
            _check_unique(session, relation, self.old, self.new, statement)
        apply(session, relation, replacement(self.old, self.new), updated=(self.old, self.new))


def update_images(
    session: Session, relation: Relation, statement: Update, asked: Returned | None = None, *, repeated: bool = False
) -> Images:
    """The rows that an UPDATE changes. repeated: see `matching`. The caller holds the guard."""
    statement, defaults = _with_defaults(session, relation, statement)
    targets = assigned(relation, statement)
    values = tuple(e for _, e in statement.assignments)
    _check_stars(values, statement)
    query = matching(
        session,
        relation,
        statement.alias,
        statement.where,
        (*(t.typed(v) for t, v in zip(targets, values, strict=True)), *(asked.values if asked else ())),
        statement,
        statement.sources,
        repeated=repeated,
    )
    width = len(relation.columns)
    check_types(query.columns[width : width + len(targets)], targets, statement)
    rows = fetch(session, both_images(query, relation, targets, defaults), newest=True)
    schema = arrow_schema(relation.columns, positional=False)
    old = pa.Table.from_arrays(rows.columns[:width], schema=schema)
    new = pa.Table.from_arrays(rows.columns[width : 2 * width], schema=schema)
    new = with_serials(session, relation, new, defaults)
    new = as_kept(relation, with_generated(relation, new, statement))
    check_rows(relation, new, statement)
    moves = bool({*defaults, *(t.column.name for t in targets)} & set(relation.primary_key))
    return Images(old, new, rows.select(range(2 * width, rows.num_columns)), asked and asked.bound(query), moves)


def _with_defaults(session: Session, relation: Relation, statement: Update) -> tuple[Update, dict[str, str]]:
    """An UPDATE without the columns that it sets to DEFAULT, and DuckDB SQL for their values."""
    names = tuple(name for name, value in statement.assignments if is_default(value))
    if not names:
        return statement, {}
    found = assigned(relation, statement, defaults=True)
    now_us = session.database.clock.now_us()
    values = {}
    for target, (name, value) in zip(found, statement.assignments, strict=True):
        column = target.column.name
        if not is_default(value) or column in relation.always_generated:
            continue
        if column in relation.generated:
            raise not_supported("DEFAULT of a column that reads other columns", statement.text, name.span)
        values[column] = omitted(relation, target.column, now_us)
    others = tuple(pair for pair in statement.assignments if not is_default(pair[1]))
    return replace(statement, assignments=others), values


def _check_unique(session: Session, relation: Relation, old: pa.Table, new: pa.Table, statement: Update) -> None:
    """Raises UNIQUE_VIOLATION if two of the `new` rows have the same primary key, or one has the key of a row outside
    `old`.

    Rows are checked after all are updated, so they may exchange keys, as with PostgreSQL's deferrable constraints.
    """
    _, taken = split_by_key(session, relation, new)
    if not taken.num_rows:
        taken = rows_without(session, relation, rows_with_keys(session, relation, new), old)
    if taken.num_rows:
        names = ", ".join(relation.primary_key)
        values = ", ".join(str(taken.column(k)[0].as_py()) for k in relation.primary_key)
        raise error_at(
            statement,
            statement.span,
            "UNIQUE_VIOLATION",
            f'duplicate key value violates unique constraint "{relation.key_name}"',
            detail=f"Key ({names})=({values}) already exists.",
        )


def described_change(session: Session, statement: Insert | Update | Delete) -> Result | None:
    """A result with the columns of RETURNING, without changing anything; None without RETURNING."""
    relation, _, asked = _planned(session, statement)
    if asked is None:
        return None
    with session.database.guard:
        found = asked.query(session, asked.relation(relation), statement)
    return Result("", found.columns, origins=found.origins)


def planned_change(session: Session, statement: Insert | Update | Delete) -> tuple[Relation, BatchQuery]:
    """(the relation that a statement changes, the query for the inserted, or the changed, rows)."""
    return _planned(session, statement)[:2]


def _planned(session: Session, statement: Insert | Update | Delete) -> tuple[Relation, BatchQuery, Returned | None]:
    with session.database.guard:
        if isinstance(statement, Insert):
            made = bound_insert(session, statement)
            check_rule(session, made.relation, statement)
            return made.relation, made.query, returned(session, made.relation, statement)
        there = changed_elsewhere(session, statement.table)
        changing = not _writes_tombstones(session, statement)
        relation = there or writable(session, statement.table, statement, "change", changing=changing)
        values: tuple[exp.Expression, ...] = ()
        if isinstance(statement, Update):
            statement, _ = _with_defaults(session, relation, statement)
            targets = assigned(relation, statement)
            given = (e for _, e in statement.assignments)
            values = tuple(t.typed(v) for t, v in zip(targets, given, strict=True))
        asked = returned(session, relation, statement)
        values += asked.values if asked else ()
        query = matching(session, relation, statement.alias, statement.where, values, statement, statement.sources)
        return relation, query, asked and asked.bound(query)


def writable(session: Session, name: Name, statement: Statement, what: str, *, changing: bool = False) -> Relation:
    """The table, if the session may write it. changing: the statement deletes rows, which an append-only table
    rejects.
    """
    session.require_writer(what.split(maxsplit=1)[0].upper())
    if session.transaction is not None and session.transaction.read_only:
        raise error("READ_ONLY_SESSION", f"can't {what} a table in a read-only transaction")
    relation = session.relation(name, statement)
    require_change(session, relation, statement)
    if relation.topic is not None and RECORD_NUMBER in [c.name for c in relation.columns]:
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} topic "{relation.shown}"',
            detail="Only its processor writes it.",
        )
    if relation.is_written_externally and not changing:
        if relation.connector.get("connector") == "rotating_file":
            raise not_supported(
                f"{what} {relation.title}",
                statement.text,
                name.span,
                hint="Files are written by pumps: CREATE PUMP … AS INSERT INTO ….",
            )
        return relation
    if not isinstance(relation, Table):
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} {relation.what} "{relation.name}"',
            detail="Only tables are changed by statements.",
        )
    if (relation.connector and relation.topic is None) or isinstance(relation, CapturedTable | ReceivedTable):
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} table "{relation.name}": its rows come from its connector',
        )
    if relation.is_external:
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f'can\'t {what} {relation.what} "{relation.name}": its content is outside of the database',
        )
    if changing and relation.topic is not None and session.semantics.changes_topics == "records":
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f"can't {what} {relation.title}: its records stay as they are",
            hint="Insert a record with the same key: read as a table, the topic shows the last one.",
        )
    if changing and relation.append_only:
        raise error_at(
            statement, name.span, "READ_ONLY_RELATION", f'can\'t {what} append-only {relation.what} "{relation.name}"'
        )
    return relation


def require_change(session: Session, relation: Relation, statement: Statement) -> None:
    """Raises PERMISSION_DENIED if the session may not change rows of a relation as the statement does."""
    privilege: Privilege = (
        "UPDATE" if isinstance(statement, Update) else "DELETE" if isinstance(statement, Delete) else "INSERT"
    )
    session.require(privilege, relation, statement.text)


def insert_targets(relation: Relation, statement: Insert) -> tuple[Target, ...]:
    """The columns that an INSERT fills, in the order of its values."""
    if not statement.columns:
        return tuple(Target(c) for c in relation.written if c.name != DELTA_COLUMN)
    found = named_targets(relation, statement.columns, statement)
    check_given(relation, found, statement)
    return tuple(replace(t, epoch_ms=relation.topic is not None and t.column.name == RECORD_TIME) for t in found)


def _check_width(given: int, wanted: int, statement: Insert) -> None:
    if given > wanted:
        raise error_at(
            statement,
            statement.span,
            "SYNTAX_ERROR",
            "INSERT has more expressions than target columns",
            detail=f"{given} expressions for {wanted} columns.",
        )
    if given < wanted:
        raise error_at(
            statement,
            statement.span,
            "SYNTAX_ERROR",
            "INSERT has more target columns than expressions",
            detail=f"{given} expressions for {wanted} columns.",
        )


def result_of(
    command: str,
    session: Session,
    relation: Relation,
    statement: Insert | Update | Delete,
    asked: Returned | None,
    rows: pa.Table,
    beside: pa.Table | None = None,
) -> Result:
    """The result of a change: what RETURNING asks for of `rows` of `relation`; without it, the number of rows. beside:
    the values of other relations; None if the rows have them.
    """
    if asked is None:
        return Result(command, rowcount=rows.num_rows)
    relation, rows = asked.relation(relation), asked.rows(rows, beside)
    query = asked.query(session, relation, statement)
    if set(query.depends_on) - {relation.id} or sum(1 for i in asked.items for _ in i.find_all(exp.Subquery)):
        raise not_supported("a subquery in RETURNING", statement.text, statement.span)

    @contextmanager
    def shown() -> Iterator[duckdb.DuckDBPyConnection]:
        with (
            session.database.content.reader(session.catalog, ()) as (connection, _),
            session.cancellation.over(connection),
            lent(connection, rows, relation.columns, relation.shown),
        ):
            yield connection

    table = padded(rows_read(session, shown, query.sql, statement.text), query.columns)
    return rows_result(command, *described(table, query.columns), query.origins)


def insert_all(session: Session, relation: Relation, query: BatchQuery) -> int:
    """Inserts the rows of a query, which has the columns of the relation. Returns their number."""
    with session.database.guard:
        targets = tuple(Target(c) for c in relation.columns)
        rows = fetch(session, assignable(query, targets, relation, session.database.clock.now_us()), newest=True)
        apply(session, relation, Change(rows))
    return int(rows.num_rows)
