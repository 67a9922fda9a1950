"""The state that the statements of one connection share.

`check_statement` decides which statements a role may run: each has a minimum fixed role (`Statement.takes`). Access to
relations is checked where their names are looked up: `Session.require`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

import pyarrow as pa
from sqlglot import exp

from watersmeet.binder.clauses.sources import files_refused
from watersmeet.catalog import (
    SHOWN,
    TEMPORARY,
    Catalog,
    DomainType,
    EnumType,
    Index,
    MaterializedView,
    NumberSequence,
    Processor,
    Pump,
    QuerySource,
    Relation,
    Role,
    RoleChange,
    SqlFunction,
    StoppedPump,
    Stream,
    Table,
    TopicTable,
    View,
    is_temporary,
    one,
)
from watersmeet.catalog.roles import ADMIN, EVERYTHING, READER, WRITER, Actor, Privilege, Rights, acting_rights
from watersmeet.circuit.operators import Operator
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.cancellation import Cancellation
from watersmeet.database.sessions.cursors import Acknowledgements, Cursors, Prepared
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.variables import Variables
from watersmeet.database.transaction import ISOLATIONS, Isolation, Stoppable, Transaction
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import find_relation, listed, near_relations, schema_meant
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Parameters
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.objectstores.base import ENVIRONMENT, is_local
from watersmeet.system.secretvalues import revealed

_LOG: Final = logging.getLogger(__name__)

#: The options that are a file or a URL.
_PLACES: Final = ("location", "schema.location", "warehouse.path")


@dataclass
class OwnWrites:
    """The rows that a session has committed. pending: whether queries may not show some of them yet."""

    pending: bool = False


@dataclass(eq=False)
class Inbox:
    """The notifications for a client that listens to channels. wake: called in any thread when one has arrived.
    process: the number of the client. waiting: sender, channel and payload of each, oldest first. channels: those that
    it listens to, with what ends a channel of changes.
    """

    wake: Callable[[], object]
    process: int = 0
    waiting: deque[tuple[int, str, str]] = field(default_factory=deque)
    channels: dict[str, Callable[[], None] | None] = field(default_factory=dict)

    def put(self, sender: int, channel: str, payload: str) -> None:
        """Adds a notification. Thread-safe."""
        self.waiting.append((sender, channel, payload))
        with suppress(RuntimeError):  # the server has ended
            self.wake()


@dataclass
class Temporaries:
    """The temporary relations of a session. schema: their schema; empty until the first one. on_commit: the effect of
    COMMIT on tables, by id.
    """

    schema: str = ""
    on_commit: dict[str, Literal["delete rows", "drop"]] = field(default_factory=dict)

    def take(self, statement: df.Create) -> bool:
        """Whether a statement creates a temporary relation."""
        return statement.temporary or statement.schema == TEMPORARY

    def open(self) -> str:
        """The schema."""
        self.schema = self.schema or f"{TEMPORARY}_{secrets.token_hex(4)}"
        return self.schema


@dataclass
class JointFill:
    """The views that consecutive statements create and that will be filled together (`filling.fill_together`).

    relations, operators: by id; neither is stored before all statements are bound. Other sessions see none of them.
    """

    relations: dict[str, Relation] = field(default_factory=dict)
    operators: dict[str, Sequence[Operator]] = field(default_factory=dict)
    _seen: dict[str, Relation] = field(default_factory=dict)

    def add(self, relation: Relation, seen: Relation, operators: Sequence[Operator]) -> None:
        """Adds a view. seen: its entry in the catalog that its session sees."""
        self.relations[relation.id], self.operators[relation.id] = relation, operators
        self._seen[relation.id] = seen

    def over(self, catalog: Catalog) -> Catalog:
        """A catalog with the views."""
        if not self._seen:
            return catalog
        number = catalog.next_number + len(self._seen)
        return replace(catalog, next_number=number, relations={**catalog.relations, **self._seen})


class FilledAloneError(Exception):
    """A view can't be filled together with those of other statements."""


@dataclass(frozen=True)
class Nested:
    """Runs the statements inside of another statement. lock: the lock of the connection, which is released
    meanwhile.
    """

    run: Callable[[Statement], Result]
    lock: threading.RLock


class OwnHandler(Protocol):
    """Runs statements that are specific to a kind of connection, such as COPY to the client of a server."""

    def run(self, statement: Statement, nested: Nested) -> Result:
        """Runs a statement. The caller holds no lock."""
        ...

    def describe(self, statement: Statement) -> Result | None:
        """The columns of a statement's rows without running it; None if it returns no rows."""
        ...


#: The kinds of relations that can be created in a fork.
_IN_FORKS: Final = (
    *(Table, Stream, TopicTable, View, MaterializedView, Processor, Pump, StoppedPump),
    *(Index, EnumType, DomainType),
)

_FORK_HINT: Final = "A fork has tables, views and indexes of its own. Create others in the main database."


def _check_in_fork(relations: Iterable[Relation], database: OpenDatabase) -> None:
    """Raises FEATURE_NOT_SUPPORTED for new relations of a fork that read other systems, or whose numbers PROMOTE would
    not take over.
    """
    for relation in relations:
        refused = relation.connector or isinstance(relation, NumberSequence)
        if relation.id in database.catalog.relations or not refused:
            continue
        if isinstance(relation, QuerySource):
            read = database.catalog.relations[relation.of].title
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"another view over {read} can't be created in a fork",
                detail="The read position of each view is its own, and REPLAY has those of the main database.",
                hint="In the main database, let a view write it INTO a stream. Views over that stream can be changed.",
            )
        raise error("FEATURE_NOT_SUPPORTED", f"{relation.title} can't be created in a fork", hint=_FORK_HINT)


@dataclass
class Session:
    """The state of a connection.

    connectors: `used`; `ignored`: relations are created without them, as tests do that give rows themselves;
    `checked`: only their options are read. Unless they are used, no other system is contacted: sinks deliver nothing,
    and a statement that needs an answer of another system raises RUNTIME_UNAVAILABLE.

    view: the view whose text is being read instead of the user's. running: queries that run until they are stopped.
    stopping: threads that are stopping such queries. acknowledgements: the acknowledgements of the subscriptions that
    were read, by relation id. reported_failures: ids of the views whose failure FLUSH has already reported.
    cancellation: cancels the current statement. files: whether its statements may read local files, if the database
    permits it.

    user: the role that logged in; None for the program that opened the database. role: the role whose rights apply;
    None: all rights. verifiers: the verifiers of the passwords that the user itself has set. puts_roles: whether the
    running statement has changed roles. waits: whether queries wait until they reflect the session's commits. writes:
    the session's commits since the last wait.

    result_bytes: the maximum size of a query's result; 0: unlimited. memory_bytes: the memory of a query in a separate
    process; 0: such processes are not used. sequence_values, last_sequence: the last numbers of sequences by their ids,
    and the one of the last. cursors, prepared: the open cursors and prepared statements by name.
    reader: parses texts. handlers: the handlers of statements that only this connection has. joint: collects the views
    of consecutive statements. temporaries: its temporary relations. inbox: None if it can't receive
    notifications. beside: relations of the running statement that have no stored rows, with their rows, by id.
    inlined: replaces calls in a query, with its text, that only this kind of connection has. teller: shows a notice
    while its statement runs, in any thread.
    """

    database: OpenDatabase
    variables: Variables
    connectors: Literal["used", "ignored", "checked"] = "used"
    transaction: Transaction | None = None
    view: Relation | None = None
    running: weakref.WeakSet[Stoppable] = field(default_factory=weakref.WeakSet)
    stopping: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    acknowledgements: dict[str, Acknowledgements] = field(default_factory=dict)
    reported_failures: set[str] = field(default_factory=set)
    cancellation: Cancellation = field(default_factory=Cancellation)
    files: bool = True
    user: Actor | None = None
    role: Actor | None = None
    verifiers: set[str] = field(default_factory=set)
    puts_roles: bool = False
    waits: bool = False
    writes: OwnWrites = field(default_factory=OwnWrites)
    result_bytes: int = 0
    memory_bytes: int = 0
    sequence_values: dict[str, int] = field(default_factory=dict)
    last_sequence: str = ""
    cursors: Cursors = field(default_factory=Cursors)
    prepared: dict[str, Prepared] = field(default_factory=dict)
    reader: Callable[[str, str, Parameters], list[Statement]] = parse
    handlers: Mapping[type[Statement], OwnHandler] = field(default_factory=dict)
    joint: JointFill | None = None
    temporaries: Temporaries = field(default_factory=Temporaries)
    inbox: Inbox | None = None
    beside: dict[str, tuple[Relation, pa.Table]] = field(default_factory=dict)
    inlined: Callable[[exp.Expression, str], exp.Expression] = lambda tree, _: tree
    teller: Callable[[str], object] = _LOG.warning
    _rights: tuple[Mapping[str, Role], Actor, Rights] | None = None
    _thread: threading.local = field(default_factory=threading.local)

    def receive(self, wake: Callable[[], object], process: int) -> None:
        """Lets the session listen to channels. See `Inbox`."""
        self.inbox = Inbox(wake, process)

    def parse(self, text: str, parameters: Parameters = ()) -> list[Statement]:
        """The statements of a text in the session's dialect, as by `dialects.parsing.parse`. Raises QUERY_CANCELED."""
        return self.cancellation.computing(self.reader, text, self.dialect, parameters)

    @property
    def reads_files(self) -> bool:
        """Whether its statements may read local files."""
        return self.files and self.database.files

    @property
    def dialect(self) -> str:
        """The name of the SQL dialect; of a variant, that of its dialect."""
        chosen = self.variables.dialect
        return language_named(chosen).base or chosen

    @property
    def notices(self) -> list[str]:
        """The notices of the statements that this thread runs."""
        found: list[str] = self._thread.__dict__.setdefault("notices", [])
        return found

    @property
    def catalog(self) -> Catalog:
        """The newest catalog, as seen with the session's search path."""
        catalog = self.database.catalog
        if self.joint is not None:
            catalog = self.joint.over(catalog)
        if self.transaction is not None:
            catalog = self.transaction.definitions.seen(catalog)
        if self.view is not None:
            return catalog.seen_by(self.view)
        granted = self._granted(catalog)
        if self.beside:
            catalog = catalog.with_relation(*(relation for relation, _ in self.beside.values()))
            granted = None if granted is None else granted | self.beside.keys()
        return replace(catalog, path=self.path_in(catalog), zone=self.variables.zone, granted=granted)

    @property
    def rights(self) -> Rights:
        """The current rights; a role may gain or lose rights at any time."""
        if self.role is None:
            return EVERYTHING
        roles: Mapping[str, Role] = self.database.catalog.roles
        if self.transaction is not None:
            roles = self.transaction.definitions.seen(self.database.catalog).roles
        return self._rights_in(roles)

    def _rights_in(self, roles: Mapping[str, Role]) -> Rights:
        if self.role is None:
            return EVERYTHING
        known = self._rights
        if known is None or known[0] is not roles or known[1] != self.role:
            known = self._rights = (roles, self.role, acting_rights(roles, self.role))
        return known[2]

    def _granted(self, catalog: Catalog) -> frozenset[str] | None:
        """The ids of the relations that the session may see; None for all."""
        rights = self._rights_in(catalog.roles)
        return None if rights.has(READER) else frozenset(rights.grants)

    def require(self, privilege: Privilege, relation: Relation, text: str | None) -> None:
        """Raises PERMISSION_DENIED without the privilege on a relation. text: the statement that errors show."""
        if relation.id in self.beside:
            return
        if self.view is None and not self.rights.may(privilege, relation.id):
            raise denied(relation.title, text, detail=f"It requires the privilege {privilege}.")

    def show_writes(self) -> None:
        """Waits until tables and views reflect the session's commits, if the session requires this.

        If the engine fails, queries show the last content with a notice.
        """
        if not self.waits or not self.writes.pending:
            return
        self.writes.pending = False
        try:
            self.database.flush()
        except Error as err:
            self.notice(f"the newest rows are not shown yet: {err.message}")

    def put_roles(self, changes: Sequence[RoleChange]) -> None:
        """Changes the roles of the database."""
        database = self.database
        self.puts_roles = True
        with database.guard:
            if self.transaction is not None:
                self.transaction.definitions.put_roles(changes, database.catalog)
            elif changes:
                database.change_catalog(database.catalog.with_roles(changes))

    def put(self, *relations: Relation) -> None:
        """Adds relations to the catalog, or replaces those with their ids, in one step. In a transaction, others see
        them after COMMIT.
        """
        database = self.database
        with database.guard:
            if database.layout.is_fork:
                _check_in_fork(relations, database)
            seen: list[Relation] = list(relations)
            if self.transaction is not None:
                definitions = self.transaction.definitions
                seen = [r for relation in relations if (r := definitions.put(relation, database.catalog)) is not None]
            if seen:
                database.change_catalog(database.catalog.with_relation(*seen))

    def put_schemas(self, schemas: tuple[str, ...]) -> None:
        """Replaces the set of schemas, except for the default one."""
        database = self.database
        with database.guard:
            if self.transaction is None:
                database.change_catalog(database.catalog.with_schemas(schemas))
            else:
                self.transaction.definitions.put_schemas(schemas, database.catalog)

    def put_functions(self, functions: Iterable[SqlFunction]) -> None:
        """Adds SQL functions to the catalog, or replaces those with their ids."""
        database = self.database
        with database.guard:
            if self.transaction is None:
                database.change_catalog(database.catalog.with_functions(functions))
            else:
                self.transaction.definitions.put_functions(functions, database.catalog)

    def writes_at_once(self, relation: Relation) -> bool:
        """Whether changes of a relation are committed immediately, outside a transaction or because no other session
        sees it.
        """
        return self.transaction is None or relation.id in self.transaction.definitions.made

    @property
    def isolation(self) -> Isolation:
        """The level of transactions that name none."""
        return next(n for n in ISOLATIONS if n == self.variables.isolation)

    @property
    def semantics(self) -> Semantics:
        """The defaults of the session's dialect."""
        return language_named(self.dialect).semantics

    def path_in(self, catalog: Catalog) -> tuple[str, ...]:
        """The schemas of `search_path` that exist in a catalog, after that of the session's temporary relations."""
        wanted = (schema_meant(n, catalog) for n in listed(self.variables.get("search_path")))
        own = (self.temporaries.schema,) if self.temporaries.schema else ()
        return (*own, *(n for n in dict.fromkeys(wanted) if n is not None and n not in own))

    @property
    def lasting_path(self) -> tuple[str, ...]:
        """The schemas in which names are looked up, without that of temporary relations."""
        return tuple(s for s in self.catalog.path if not is_temporary(s))

    def check_lasting(self, relation: Relation) -> None:
        """Raises FEATURE_NOT_SUPPORTED for a relation that outlives a temporary one that it reads or references."""
        if is_temporary(relation.schema):
            return
        known = self.catalog.relations
        used = [*relation.depends_on, *(k.table for k in relation.foreign_keys)]
        found = next((known[i] for i in used if i in known and is_temporary(known[i].schema)), None)
        if found is not None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'{relation.family} "{relation.name}" can\'t use the temporary {found.family} "{found.name}"',
                hint="It would remain when the session ends. Use a table without TEMP.",
            )

    def queries(self) -> list[Stoppable]:
        """The running queries, in the order in which they were started."""
        return sorted((q for q in self.running if not q.closed), key=lambda q: (q.started_us, q.name))

    def stop_running(self) -> None:
        """Ends all running queries."""
        for query in list(self.running):
            query.close()
        for thread in list(self.stopping):
            thread.join()

    def notice(self, text: str) -> None:
        """Adds a notice for the user to the result."""
        self.notices.append(text)

    @contextmanager
    def numbered(self) -> Iterator[None]:
        """Adds the dialect's error number to errors raised inside, unless they have one."""
        try:
            yield
        except Error as err:
            if err.code is None:
                err.code = language_named(self.dialect).codes.get(err.condition)
            raise

    def relation(self, name: Name, statement: Statement) -> Relation:
        """The relation with a name. Raises UNDEFINED_RELATION with the position of the name."""
        found = self.find(name)
        if found is None:
            raise undefined_relation(self.catalog, name, statement)
        return found

    def find(self, name: Name) -> Relation | None:
        """The relation with a name, or None."""
        return find_relation(self.catalog, name.name, name.schema, folded=name.folded)

    def require_writer(self, what: str) -> None:
        """Raises READ_ONLY_SESSION if this connection may only read."""
        if self.database.read_only:
            raise error(
                "READ_ONLY_SESSION",
                f"{what} is not possible on a read-only connection",
                hint="Connect without read_only = True, or to the server that writes: one process at a time can.",
            )

    def require_files(self, connector: Mapping[str, str]) -> None:
        """Raises FILES_NOT_ALLOWED for a connector that reads files or environment variables, if this connection must
        not.
        """
        if self.reads_files:
            return
        named = [connector[n] for n in _PLACES if n in connector]
        if "sqlite:" in revealed(connector.get("catalog.uri", "")):
            raise files_refused("a catalog in a file")
        if "path" in connector or ENVIRONMENT in connector or any(map(is_local, named)):
            raise files_refused("a connector with a path")

    def require_outside(self, what: str, statement: Statement, span: Span | None) -> None:
        """Raises RUNTIME_UNAVAILABLE if connectors are only checked, because only an external system knows `what`."""
        if self.connectors == "checked":
            raise error_at(
                statement, span, "RUNTIME_UNAVAILABLE", f"{what} can't be known without a connection to its system"
            )

    def require_definer(self, what: str) -> None:
        """Raises READ_ONLY_SESSION if this connection, or its transaction, may only read."""
        self.require_writer(what)
        if self.transaction is not None and self.transaction.read_only:
            raise error("READ_ONLY_SESSION", f"{what} is not possible in a read-only transaction")

    def require_creator(self, statement: df.Create, span: Span | None) -> None:
        """Like `require_definer`. Raises FEATURE_NOT_SUPPORTED for a kind of relation that a fork can't create."""
        self.require_definer("CREATE")
        if self.database.layout.is_fork and statement.makes not in _IN_FORKS:
            kind = statement.makes.words.what
            raise error_at(
                statement, span, "FEATURE_NOT_SUPPORTED", f"{one(kind)} can't be created in a fork", hint=_FORK_HINT
            )

    def require_outputs(self, relation: Relation, statement: Statement, span: Span | None) -> None:
        """Raises FEATURE_NOT_SUPPORTED in a fork, which writes nothing to other systems."""
        if self.database.layout.is_fork:
            raise error_at(
                statement,
                span,
                "FEATURE_NOT_SUPPORTED",
                f"{relation.title} can't be written in a fork",
                detail="Its rows are outside of the database.",
                hint="Write it in the main database.",
            )

    def require_no_transaction(self, what: str) -> None:
        """Raises TRANSACTION_STATE inside BEGIN … COMMIT."""
        if self.transaction is not None:
            raise error(
                "TRANSACTION_STATE", f"{what} is not possible inside a transaction", hint="COMMIT or ROLLBACK first."
            )


def denied(what: str, text: str | None, *, detail: str | None = None) -> Error:
    """The error PERMISSION_DENIED. text: the statement that errors show."""
    return error("PERMISSION_DENIED", f"permission denied for {what}", detail=detail, sql=text)


def error_at(
    statement: Statement,
    span: Span | None,
    condition: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    code: int | None = None,
) -> Error:
    """An error with its position in the text of `statement`."""
    return error(condition, message, detail=detail, hint=hint, sql=statement.text, span=span, code=code)


def depended_on(statement: Statement, span: Span | None, action: str, uses: Iterable[str], *, hint: str) -> Error:
    """The error DEPENDENT_OBJECTS of an action, such as `drop table "a"`. uses: a clause for each dependent object."""
    message = f"cannot {action} because other objects depend on it"
    return error_at(statement, span, "DEPENDENT_OBJECTS", message, detail=sentence(uses), hint=hint)


@contextmanager
def located(statement: Statement, span: Span | None, spans: Mapping[str, Span] | None = None) -> Iterator[None]:
    """Adds a span in the text of `statement` to errors in the block, unless they have one.

    spans: the spans of its options. The span is that of the option in the error's message, else `span`.
    """
    try:
        yield
    except Error as err:
        if err.span is None:
            words = err.message.replace('"', " ").split()
            err.span = next((found for option, found in (spans or {}).items() if option in words), span)
            err.sql = statement.text
        elif err.sql is None:
            err.sql = statement.text
        raise


def sentence(parts: Iterable[str]) -> str:
    """Joins clauses to a sentence for the detail of an error."""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def undefined_relation(
    catalog: Catalog, name: Name, statement: Statement, what: str = "relation", known: Iterable[str] | None = None
) -> Error:
    """The error UNDEFINED_RELATION with similar names."""
    hint = near_relations(catalog, name.name, name.schema) if known is None else did_you_mean(name.name, known)
    return error_at(statement, name.span, "UNDEFINED_RELATION", f'{what} "{name.shown}" does not exist', hint=hint)


def undefined_column(relation: Relation, name: str, span: Span, statement: Statement) -> Error:
    """The error UNDEFINED_COLUMN with similar names."""
    message = f'column "{name}" of relation "{relation.shown}" does not exist'
    hint = did_you_mean(name, [c.name for c in relation.columns])
    return error_at(statement, span, "UNDEFINED_COLUMN", message, hint=hint)


#: Lists of SHOW that every role may read, restricted to visible relations.
_LISTS: Final = (*SHOWN, "all", "columns", "databases", "functions", "grants", "relations", "roles", "schemas")

#: Lists of SHOW about the whole database, with the required fixed role.
_OF_DATABASE: Final = {"parameters": WRITER, "secrets": WRITER}


def check_statement(session: Session, statement: st.Statement) -> None:
    """Raises PERMISSION_DENIED for a statement that the session's role may not run."""
    rights = session.rights
    if rights.has(ADMIN):
        return
    needed = _needed(session, statement)
    if needed is not None and not rights.has(needed):
        raise denied("this statement", statement.text, detail=f"It takes the role {needed}.")


def check_named(session: Session, relation_ids: Sequence[str], text: str | None = None) -> None:
    """Raises PERMISSION_DENIED if a query names a relation that the session may not read."""
    known = session.catalog.relations
    for relation_id in relation_ids:
        session.require("SELECT", known[relation_id], text)


def check_followed(session: Session, relation_ids: Sequence[str]) -> None:
    """Raises PERMISSION_DENIED if the session may no longer read a relation that a running query reads. Readers of
    dropped relations end by themselves.
    """
    known = session.catalog.relations
    check_named(session, [i for i in relation_ids if i in known])


def _needed(session: Session, statement: st.Statement) -> str | None:
    """The fixed role that a statement requires, or None."""
    if isinstance(statement, st.Explain):
        return _needed(session, statement.statement)
    if isinstance(statement, st.Show):
        return _shown(statement.what)
    if _has_connector(statement):
        return ADMIN
    return statement.role_for(None if session.user is None else session.user.name)


def _shown(what: str) -> str | None:
    if what in _OF_DATABASE:
        return _OF_DATABASE[what]
    return None if what in _LISTS or what.startswith("create ") else READER


def _has_connector(statement: st.Statement) -> bool:
    """Whether the new relation reads from or writes to an external system."""
    return isinstance(statement, df.CreateRelation) and "connector" in statement.options
