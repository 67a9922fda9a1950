"""Changes of tables and definitions, which a transaction collects from statements and commits in one step.

Relations that a transaction creates are staged: the engine fills them and their rows are committed, but only this
transaction sees them. COMMIT then only stores a catalog in which all sessions see them. Altered or dropped relations
stay unchanged until COMMIT.

Of concurrent transactions in conflict, the first to commit wins.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.catalog import (
    Catalog,
    ForeignKey,
    LateRows,
    Relation,
    Role,
    RoleChange,
    SqlFunction,
    Subscription,
    Unique,
    late_rows_of,
)
from watersmeet.catalog.roles import Actor, PutRole, changed
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.columns import has_floats, microseconds, one_form
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.store.changes import Diff
from watersmeet.store.checkpoints import Moment
from watersmeet.store.commits import CommitLog, added
from watersmeet.store.sequences import Count

#: The level of a transaction: what its statements see of concurrent commits. READ UNCOMMITTED is READ COMMITTED.
Isolation = Literal["read committed", "read uncommitted", "repeatable read", "serializable"]

ISOLATIONS: Final[tuple[Isolation, ...]] = ("read committed", "read uncommitted", "repeatable read", "serializable")

Row = tuple[Any, ...]
"""The values of a relation's columns in order."""


@dataclass(frozen=True, eq=False)
class Change:
    """Rows (columns by the relation's names, in order) and the diff of each; diff None: 1 for each."""

    table: pa.Table
    diff: Diff | None = None

    @property
    def diffs(self) -> Diff:
        """The diff as an array."""
        return np.ones(self.table.num_rows, np.int64) if self.diff is None else self.diff

    def newest_us(self, column: str) -> int:
        """The newest time in a column, of at least one row."""
        return int(microseconds(self.table.column(column))[0].max())


class Stoppable(Protocol):
    """A query that runs until it is closed.

    id: the id of its view. name: the id shown to users. text: the text as written. started_us: its start, in
    microseconds since 1970 (UTC).
    """

    id: str
    name: str
    text: str
    started_us: int

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def kill(self) -> None:
        """Ends it; its readers receive QUERY_CANCELED."""
        ...

    def close(self) -> None:
        """Ends it. It may be called again."""
        ...


@dataclass
class Definitions:
    """The difference between the committed catalog and the one that the transaction sees.

    made, dropped: the ids of created and dropped relations. altered: the new definitions by id. schemas_made,
    schemas_dropped: the names of schemas. stopped: ids of relations that stay but are no longer fed by the circuit.
    functions: the new definitions of SQL functions by id. roles: the changes of roles in order.

    From the committed state before the first change, COMMIT detects whether others have changed it since:
    relations_before and functions_before, by id; roles_before; there, the ids of all relations when some were dropped.
    """

    made: set[str] = field(default_factory=set)
    altered: dict[str, Relation] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    schemas_made: tuple[str, ...] = ()
    schemas_dropped: frozenset[str] = frozenset()
    stopped: set[str] = field(default_factory=set)
    functions: dict[str, SqlFunction] = field(default_factory=dict)
    roles: list[RoleChange] = field(default_factory=list)
    relations_before: dict[str, Relation] = field(default_factory=dict)
    functions_before: dict[str, SqlFunction | None] = field(default_factory=dict)
    roles_before: Mapping[str, Role] | None = None
    there: set[str] = field(default_factory=set)
    _shown_before: dict[str, tuple[Relation, Relation]] = field(default_factory=dict)
    """Created objects with their last shown form by id, cached because a statement often requests all of them."""

    def __bool__(self) -> bool:
        changed_names = self.schemas_made or self.schemas_dropped or self.functions or self.roles
        return bool(self.made or self.altered or self.dropped or changed_names)

    def seen(self, catalog: Catalog) -> Catalog:
        """The catalog that the transaction sees, and that its COMMIT stores."""
        if not self:
            return catalog
        relations = {
            i: self.altered.get(i, self._shown(r, catalog) if i in self.made else r)
            for i, r in catalog.relations.items()
            if i not in self.dropped
        }
        for late in [r for r in relations.values() if isinstance(r, LateRows) and r.owner in self.altered]:
            for made in late_rows_of(relations[late.owner]):
                if made.number == late.number:
                    relations[late.id] = replace(made, id=late.id, since=late.since)
        kept = tuple(n for n in catalog.schemas if n not in self.schemas_dropped)
        schemas = kept + tuple(n for n in self.schemas_made if n not in kept)
        functions = {**catalog.functions, **self.functions}
        roles = changed(catalog.roles, self.roles) if self.roles else catalog.roles
        return replace(catalog, relations=relations, schemas=schemas, functions=functions, roles=roles)

    def _shown(self, relation: Relation, catalog: Catalog) -> Relation:
        """A relation of the transaction as all sessions see it after COMMIT."""
        known = self._shown_before.get(relation.id)
        if known is not None and known[0] is relation and known[1].since == catalog.version + 1:
            return known[1]
        shown = replace(relation, hidden=False, staged=False, since=catalog.version + 1)
        self._shown_before[relation.id] = relation, shown
        return shown

    @property
    def own(self) -> AbstractSet[str]:
        """The ids of the relations that the transaction has created or altered."""
        return self.made | self.altered.keys()

    def put(self, relation: Relation, catalog: Catalog) -> Relation | None:
        """Add a relation, or replace the one with its id.

        Returns the relation for the committed catalog; None if it must wait for COMMIT.
        """
        known = catalog.relations.get(relation.id)
        if known is not None and (not known.hidden or relation.id in self.altered):
            self.relations_before.setdefault(relation.id, known)
            self.altered[relation.id] = relation
            return None
        if relation.hidden:
            return relation
        self.made.add(relation.id)
        return replace(relation, hidden=True, staged=True)

    def put_schemas(self, schemas: Sequence[str], catalog: Catalog) -> None:
        """Replace the set of schemas, except for the default one."""
        self.schemas_made = tuple(n for n in schemas if n not in catalog.schemas)
        self.schemas_dropped = frozenset(catalog.schemas).difference(schemas)

    def put_functions(self, functions: Iterable[SqlFunction], catalog: Catalog) -> None:
        """Add functions, or replace those with their ids."""
        for function in functions:
            self.functions_before.setdefault(function.id, catalog.functions.get(function.id))
            self.functions[function.id] = function

    def put_roles(self, changes: Iterable[RoleChange], catalog: Catalog) -> None:
        """Add changes of roles."""
        if self.roles_before is None:
            self.roles_before = catalog.roles
        self.roles.extend(changes)

    def subscribe(self, relation: Relation) -> None:
        """Makes a running query a subscription after COMMIT."""
        self.altered[relation.id] = relation

    def drop(self, ids: Iterable[str], catalog: Catalog) -> set[str]:
        """Drop relations. Returns those that can be removed immediately, because no other session sees them."""
        known = catalog.relations
        self.there |= known.keys()
        unstored = {i for i in ids if i in known and known[i].hidden and not isinstance(known[i], Subscription)}
        later = {i for i in ids if i in catalog.relations} - unstored
        # Helpers of a view that others see are removed with the view.
        unstored -= {i for i in unstored if catalog.relations[i].owner in later}
        self.dropped |= set(ids) - unstored
        self.made -= unstored
        return unstored


@dataclass(frozen=True)
class Savepoint:
    """The state of an open transaction at one moment. head: the newest commit. variables, role: the session's. local,
    outer_role: as in Transaction. sent: the numbers of its `listens` and `notifications`.
    """

    name: str
    changes: Mapping[str, tuple[Change, ...]]
    clocks: Mapping[str, int]
    begun: Mapping[str, int]
    rejected: Mapping[str, int]
    definitions: Definitions
    head: int
    sequences: Mapping[str, Count]
    variables: Mapping[str, str]
    role: Actor | None
    local: Mapping[str, str | None]
    outer_role: tuple[Actor | None] | None
    sent: tuple[int, int]


@dataclass
class Transaction:
    """An open BEGIN … COMMIT. isolation: its level. failed: whether a statement raised an error, so that only ROLLBACK
    is accepted.

    variables, role, cursors: the session's at its start, which ROLLBACK restores. local: the values that SET LOCAL
    replaced. outer_role: the role that SET LOCAL ROLE replaced, in a tuple. savepoints: oldest first. committed:
    whether its changes are committed, which may be so even if COMMIT raises because views could not be updated. begun:
    by relation id, the newest commit when the relation was first changed. used: whether a statement has read or
    written. snapshot: the moment that its queries show (`snapshots`). read: the ids of relations that were read at that
    moment. locked: like `begun`, for tables of which it has read rows FOR UPDATE. running: queries that began in it.
    ends: resources released at its end. clocks, rejected: for ordered streams, by relation id, the time of the newest
    written row in microseconds, and the number of rejected rows.
    """

    read_only: bool = False
    isolation: Isolation = "read committed"
    failed: bool = False
    committed: bool = False
    changes: dict[str, list[Change]] = field(default_factory=dict)
    """The changes by relation id."""
    clocks: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    used: bool = False
    snapshot: Moment | None = None
    read: set[str] = field(default_factory=set)
    locked: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)
    """See `store.manifests.Commit`."""
    definitions: Definitions = field(default_factory=Definitions)
    running: weakref.WeakSet[Stoppable] = field(default_factory=weakref.WeakSet)
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    variables: Mapping[str, str] = field(default_factory=dict)
    role: Actor | None = None
    cursors: frozenset[str] = frozenset()
    local: dict[str, str | None] = field(default_factory=dict)
    outer_role: tuple[Actor | None] | None = None
    savepoints: list[Savepoint] = field(default_factory=list)
    pending: dict[str, tuple[Relation, list[Row]]] = field(default_factory=dict)
    """The rows of INSERTs that are not in `changes` yet, by relation id."""
    pending_keys: dict[tuple[str, tuple[str, ...]], set[int]] = field(default_factory=dict)
    """The hashes of the keys of these rows, like `key_hashes`."""
    sequences: dict[str, Count] = field(default_factory=dict)
    """The states of the sequences that it has restarted, by id, which others see after COMMIT."""
    ran: dict[str, list[str]] = field(default_factory=dict)
    """Digests of statements; see `Catalog.ran`."""
    key_hashes: dict[tuple[str, tuple[str, ...]], set[int]] = field(default_factory=dict)
    """The hashes of the keys of inserted rows, by relation id and columns."""
    unknown_keys: set[str] = field(default_factory=set)
    """The ids of relations with inserted rows that are not in `key_hashes`."""
    listens: list[Callable[[], None]] = field(default_factory=list)
    """LISTEN and UNLISTEN statements, which COMMIT carries out."""
    notifications: dict[tuple[str, str], Callable[[], None]] = field(default_factory=dict)
    """What sends the notifications after COMMIT, by channel and payload; equal ones are sent once."""
    deferring: dict[str, bool] = field(default_factory=dict)
    """Whether SET CONSTRAINTS deferred constraints, by name; the name of all is empty."""
    unchecked: set[str] = field(default_factory=set)
    """The ids of relations of which COMMIT checks the changes against deferred constraints."""
    unchecked_tables: set[str] = field(default_factory=set)
    """The ids of relations with new constraints, of which COMMIT checks all rows."""

    def defers(self, relation_id: str, constraint: Unique | ForeignKey) -> bool:
        """Whether a change of a relation is checked against a constraint at COMMIT instead of now; notes it."""
        default = self.deferring.get("", constraint.deferred)
        deferred = constraint.deferrable and self.deferring.get(constraint.name, default)
        if deferred:
            self.unchecked.add(relation_id)
        return deferred

    @property
    def reads_snapshot(self) -> bool:
        """Whether all its queries show one moment."""
        return self.isolation in ("repeatable read", "serializable")

    def note_change(self, relation_id: str, head: int) -> None:
        """Notes that a relation is changed. head: the newest commit."""
        self.begun.setdefault(relation_id, head if self.snapshot is None else self.snapshot.transaction)

    def drop(self, ids: Iterable[str], catalog: Catalog) -> set[str]:
        """Drops relations like `Definitions.drop`, and discards rows written to them."""
        for by_id in (self.changes, self.clocks, self.rejected, self.begun, self.pending):
            for relation_id in ids:
                by_id.pop(relation_id, None)
        return self.definitions.drop(ids, catalog)

    def add(self, relation_id: str, change: Change, rejected: int) -> None:
        """Add a change to the transaction, with the number of rejected rows."""
        self.rejected = added(self.rejected, {relation_id: rejected})
        if change.table.num_rows:
            self.changes.setdefault(relation_id, []).append(change)


def set_modes(transaction: Transaction, isolation: Isolation | None, read_only: bool | None) -> None:
    """Changes the modes of an open transaction. Raises TRANSACTION_STATE after its first query."""
    if transaction.used and isolation not in (None, transaction.isolation):
        raise error("TRANSACTION_STATE", "SET TRANSACTION ISOLATION LEVEL must be called before any query")
    if transaction.used and transaction.read_only and read_only is False:
        raise error("TRANSACTION_STATE", "transaction read-write mode must be set before any query")
    transaction.isolation = isolation or transaction.isolation
    if read_only is not None:
        transaction.read_only = read_only


def if_committed(transaction: Transaction, action: Callable[[], None]) -> None:
    """Runs the action at the end of a transaction, if it was committed."""
    if transaction.committed:
        action()


def in_one_form(table: pa.Table) -> pa.Table:
    """The rows with 0.0 instead of -0.0, which are equal, so that deletions can't distinguish them."""
    if not any(has_floats(f.type) for f in table.schema):
        return table
    return pa.Table.from_arrays([one_form(c) for c in table.columns], schema=table.schema)


def joined(changes: Sequence[Change]) -> Change:
    """All rows of `changes` in order."""
    table = pa.concat_tables([c.table for c in changes])
    return (
        Change(table)
        if all(c.diff is None for c in changes)
        else Change(table, np.concatenate([c.diffs for c in changes]))
    )


def merged(changes: Sequence[Change]) -> Change:
    """One change that is equivalent to the sequence `changes`.

    If rows are only added, they keep their order of arrival; otherwise equal rows are merged, in canonical order.
    """
    change = joined(changes)
    return change if change.diff is None else consolidated(change)


def consolidated(change: Change) -> Change:
    """The change with one row per distinct row and no diff 0, in canonical order."""
    names = change.table.column_names
    positional = change.table.rename_columns([f"c{i}" for i in range(len(names))])
    delta = consolidate(Delta(positional, change.diffs))
    columns = [
        c.cast(f.type) if c.type != f.type else c
        for c, f in zip(delta.columns.columns, change.table.schema, strict=True)
    ]
    table = pa.Table.from_arrays(columns, schema=change.table.schema)
    return Change(table, delta.diff)


def check_writers(transaction: Transaction, catalog: Catalog, log: CommitLog) -> None:
    """Raises SERIALIZATION_FAILURE if the transaction deletes rows of a table, replaces them by key or has read them
    FOR UPDATE, and the table was changed meanwhile: the rows may no longer exist. The first transaction to commit wins.
    """
    known = catalog.relations
    wanted = {
        i: number
        for i, number in transaction.begun.items()
        if i not in transaction.definitions.made
        and (known[i].primary_key or any(c.diff is not None for c in transaction.changes.get(i, ())))
    }
    for i, number in transaction.locked.items() if transaction.changes or transaction.definitions else ():
        if i in known:
            wanted[i] = min(number, wanted.get(i, number))
    for number in range(min(wanted.values(), default=log.head()) + 1, log.head() + 1):
        for relation_id in log.read(number).relations.keys() & wanted.keys():
            if number > wanted[relation_id]:
                raise concurrent(f"{known[relation_id].title} was changed since the transaction changed it.")


def check_definitions(transaction: Transaction, catalog: Catalog) -> None:
    """Rejects definitions that conflict with those that others have committed since. catalog: the committed catalog.

    Raises DUPLICATE_OBJECT for an existing name, DEPENDENT_OBJECTS for relations of others that read a dropped one,
    SERIALIZATION_FAILURE for relations that others have altered.
    """
    definitions = transaction.definitions
    seen = definitions.seen(catalog)
    for relation_id, before in definitions.relations_before.items():
        now = catalog.relations.get(relation_id)
        if relation_id not in definitions.dropped and (now is None or not _alike(now, before)):
            raise _changed(before.title)
    for function_id, function in definitions.functions_before.items():
        if catalog.functions.get(function_id) != function:
            raise _changed(f'function "{definitions.functions[function_id].name}"')
    others = (f for i, f in catalog.functions.items() if i not in definitions.functions and not f.dropped)
    functions = {(f.schema, f.name) for f in others}
    for made in definitions.functions.values():
        if (made.schema, made.name) in functions and not made.dropped:
            raise _taken("DUPLICATE_OBJECT", f'function "{made.name}"')
    _check_names(definitions, catalog, seen)
    for relation in seen.relations.values():
        if relation.schema in definitions.schemas_dropped and not relation.hidden:
            raise _dependent(relation, f'schema "{relation.schema}"')
        own = relation.id in definitions.made or relation.id in definitions.there
        if not own and not definitions.dropped.isdisjoint(relation.depends_on):
            missing = next(i for i in relation.depends_on if i in definitions.dropped)
            raise _dependent(
                relation, catalog.relations[missing].title if missing in catalog.relations else "a relation"
            )


def _alike(one: Relation, other: Relation) -> bool:
    """Whether two relations of one id have the same definition, ignoring the progress of their content."""
    return replace(one, ready=other.ready, since=other.since, hidden=other.hidden, staged=other.staged) == other


def _check_names(definitions: Definitions, catalog: Catalog, seen: Catalog) -> None:
    """Raises DUPLICATE_OBJECT for an existing name."""
    before = definitions.roles_before
    if before is not None:
        for change in definitions.roles:
            if not isinstance(change, PutRole) or not change.makes or change.name in before:
                continue
            if change.name in catalog.roles:
                raise _taken("DUPLICATE_OBJECT", f'role "{change.name}"')
    touched = definitions.made | definitions.altered.keys()
    named = {i: r for i, r in seen.relations.items() if r.is_named}
    others = {r.shown.lower(): r for i, r in named.items() if i not in touched}
    for relation_id in touched & named.keys():
        other = others.get(named[relation_id].shown.lower())
        if other is not None:
            raise _taken(other.duplicate, other.title)


def _taken(condition: str, what: str) -> Error:
    return error(
        condition,
        f"{what} already exists",
        detail="It was made since the transaction chose that name. Nothing of the transaction was done.",
    )


def _dependent(relation: Relation, what: str) -> Error:
    return error(
        "DEPENDENT_OBJECTS",
        f"cannot drop {what} because other objects depend on it",
        detail=f"{relation.title[:1].upper()}{relation.title[1:]} was made since. Nothing of the transaction was done.",
    )


def _changed(what: str) -> Error:
    return concurrent(f"{what[:1].upper()}{what[1:]} was altered, or dropped, since the transaction altered it.")


def concurrent(detail: str) -> Error:
    """The error SERIALIZATION_FAILURE for a transaction that lost against another one."""
    return error(
        "SERIALIZATION_FAILURE",
        "could not serialize access due to concurrent update",
        detail=detail,
        hint="Nothing of the transaction was done. Run it again.",
    )
