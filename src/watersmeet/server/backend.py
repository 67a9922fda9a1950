"""One client of the server: its session, prepared statements and portals. All methods block.

One thread at a time works for a client.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, ParamSpec, TypeVar

from sqlglot.tokens import Token

from watersmeet.database import committing
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.cursors import Flow, Prepared
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.variables import LIMITS, RESULT_SIZE
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.schemas import relation_written, schema_meant
from watersmeet.dialects.statements.dml import CopyIn, CopyOut
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.tokens import Parameters
from watersmeet.errors import Error, error
from watersmeet.server.catalog.answers import CatalogAnswers, CatalogTables
from watersmeet.server.catalog.queries import CatalogQuery, read_catalog_query
from watersmeet.server.clients import Clients, ClientState, Limits, kind_of
from watersmeet.server.copying import CopyResult, CopyStreams
from watersmeet.server.grouped import (
    ChangeWaiting,
    InsertWaiting,
    LookupPlan,
    Plan,
    SmallWaiting,
    changes,
    inserts,
    inserts_in,
    lookups,
    runs_together,
    waiting,
)
from watersmeet.server.results import Columns, Portal, columns_of, has_rows, portal_of
from watersmeet.server.settings import Settings
from watersmeet.server.users import Login, Users
from watersmeet.server.valuebytes import bound, for_each, number_of, parameter_of, plain
from watersmeet.session.connections.execute import (
    CONTROL,
    WRITING,
    commit_whole,
    execute_statement,
    together,
    write_added,
)
from watersmeet.session.features.settings import RollbackTo, end_session, put_setting
from watersmeet.session.statements import preparing
from watersmeet.system.threads import lock

P = ParamSpec("P")
T = TypeVar("T")

#: Statements that a failed transaction accepts.
_ENDS: Final = (st.Commit, st.Rollback, RollbackTo)

#: Settings that client libraries send, such as an encoding and a time zone. Invalid values are ignored.
_LENIENT: Final = ("timezone",)

_NO_SETTINGS: Final = ("user", "database", "options", "replication")


class Backend(ClientState):
    """One client of the server, over any protocol."""

    def __init__(
        self,
        settings: Settings,
        user: str,
        database: str,
        tables: CatalogTables,
        clients: Clients,
    ) -> None:
        super().__init__(settings.session, settings, user, database, clients)
        session = settings.session
        session.memory_bytes = clients.limits.memory_bytes
        session.reader = self._read
        self._lock = lock("connection")
        streams = CopyStreams(session)
        answers = CatalogAnswers(self, tables)
        session.handlers = {CatalogQuery: answers, CopyIn: streams, CopyOut: streams}
        session.inlined = answers.inlined
        self._reported: dict[str, str] = {}
        self.pipelined = False
        """Whether the open transaction is that of a pipeline, which ends with Sync."""

    def begin_with(self, name: str, value: str) -> None:
        """Sets a value that the client sends when it connects."""
        put_setting(self.session, name, value, local=False)

    @property
    def state(self) -> bytes:
        """The state of the transaction, as in ReadyForQuery."""
        transaction = self.session.transaction
        return b"I" if transaction is None else b"E" if transaction.failed else b"T"

    def changed_settings(self) -> dict[str, str]:
        """The reported settings that changed since the last call."""
        now = self.settings.reported()
        changed = {n: v for n, v in now.items() if self._reported.get(n) != v}
        self._reported = now
        return changed

    def columns(self, result: Result | None) -> Columns | None:
        """See `columns_of`."""
        return columns_of(result, self.session.catalog)

    def simple(self, text: str) -> Generator[Result]:
        """Runs the statements of a text sequentially; several as one transaction, as in a script.

        For a text without statements, the result has no command.
        """
        try:
            self.session.cursors.drop([""])
            inserts = inserts_in(text) if runs_together(self.session) else []
            if inserts:
                yield from self._insert_all(text, inserts)
                return
            statements = self._parsed(text)
            if not statements:
                yield Result("")
            alone = len(statements) == 1 or any(isinstance(s, CONTROL) for s in statements)
            if alone or self.session.transaction is not None:
                for statement in statements:
                    yield self.run(statement)
                if len(statements) == 1:
                    self.clients.plans.note_text(self.session, text, statements[0])
            else:
                yield from self._whole(statements)
        except Error:
            self._fail()
            raise
        finally:
            self.sync()

    def _parsed(self, text: str) -> list[st.Statement]:
        try:
            return self.session.parse(text)
        except Error as err:
            self.clients.traffic.ended(kind_of(""), err.sqlstate)
            raise

    def _insert_all(self, text: str, inserts: Sequence[tuple[int, str]]) -> Iterator[Result]:
        """Runs the INSERTs of a text in the open transaction, or as one. Those with a plan are not parsed, and their
        rows are written together, before the next statement without one, or at the end.
        """
        own = self.session.transaction is None
        parsed: dict[int, st.Statement] = {}
        most = 1  # doubled each time: the blanks before a statement are parsed as well
        try:
            for number, (start, insert) in enumerate(inserts):
                if own and self.session.transaction is None:
                    self.session.transaction = committing.new_transaction(self.session)
                if self._adds(insert):
                    yield Result("INSERT", rowcount=1)
                    continue
                if number not in parsed:
                    end = inserts[number + most][0] if number + most < len(inserts) else len(text)
                    blanks = re.sub(r"[^\n]", " ", text[:start])
                    parsed, most = dict(enumerate(self._parsed(blanks + text[start:end]), number)), 2 * most
                yield self.run(parsed[number])
                self.clients.plans.note_text(self.session, insert, parsed[number])
            write_added(self.session, self._lock)
            if own:
                commit_whole(self.session, self._lock)
        finally:
            if own:
                self._roll_back()

    def _adds(self, insert: str) -> bool:
        """Adds the row of an INSERT to the open transaction, if there is a plan for it."""
        found = self.clients.plans.of_text(self.session, insert)
        given = None if found is None else found[0].given(found[1])
        if found is None or given is None or not self._add(found[0], given, checks_later=True):
            return False
        self.clients.traffic.ended("insert")
        return True

    def small_text(self, text: str) -> SmallWaiting | None:
        """A simple query that consists of a small statement, to run with those of other clients; else None."""
        if self.session.transaction is not None or self.session.temporaries.on_commit:
            return None
        found = self.clients.plans.of_text(self.session, text)
        if found is None:
            return None
        given = found[0].given(found[1])
        return None if given is None else waiting(self.session, found[0], given)

    def small_portal(self, portal: Portal, most: int) -> SmallWaiting | None:
        """The statement of a portal, if it is small, to run with those of other clients; else None. most: as many rows
        are requested, or all if it is 0.
        """
        if most > 0 and portal.columns is not None:
            return None
        if portal.plan is None or portal.result is not None or self.session.transaction is not None:
            return None
        if self.session.temporaries.on_commit:
            return None
        return waiting(self.session, portal.plan, portal.given, portal.formats)

    def adds_rows(self, portal: Portal) -> bool:
        """Adds the rows of a small INSERT to the open transaction. False if the statement must run the usual way."""
        if (
            portal.result is not None
            or portal.plan is None
            or not self._add(portal.plan, portal.given, checks_later=self.pipelined)
        ):
            return False
        assert isinstance(portal.given, list)
        portal.result = Result("INSERT", rowcount=len(portal.given))
        self.clients.traffic.ended("insert")
        return True

    def _add(self, plan: Plan, given: object, *, checks_later: bool = False) -> bool:
        """Adds rows to the open transaction. False if the statement must run the usual way."""
        transaction = self.session.transaction
        if transaction is None or transaction.failed or transaction.definitions or transaction.read_only:
            return False
        if transaction.reads_snapshot and transaction.snapshot is None:
            return False
        return plan.add(self.session, transaction, given, checks_later=checks_later)

    def bind_small(
        self, name: str, statement: str, forms: Sequence[int], values: Sequence[bytes | None], results: Sequence[int]
    ) -> bool:
        """Creates a portal of a small statement without binding it. False if it must be bound the usual way."""
        session = self.session
        prepared = session.prepared.get(statement)
        if prepared is None or name or len(values) != len(prepared.parameters) or self.state == b"E":
            return False
        plan = self.clients.plans.of_prepared(session, prepared)
        if plan is None:
            return False
        read = plain(values, forms, prepared.parameters)
        given = None if read is None else plan.given(read)
        if given is None:
            return False
        columns = self.columns(prepared.result)
        formats = tuple(for_each(results, len(columns or ()), "columns"))
        session.cursors.drop([name])
        session.cursors[name] = Portal(
            described=prepared.columns,
            columns=columns,
            formats=formats,
            plan=plan,
            given=given,
            bind=lambda: self._bound(prepared, forms, values),
        )
        return True

    def _bound(self, prepared: Prepared, forms: Sequence[int], values: Sequence[bytes | None]) -> st.Statement | None:
        literals = bound(values, forms, prepared.parameters)
        return self._asked(preparing.bind, self.session, prepared, literals)

    def _whole(self, statements: Sequence[st.Statement]) -> Iterator[Result]:
        """Runs statements as one transaction. FLUSH commits the earlier ones."""
        own = False

        def run(statement: st.Statement) -> Iterator[Result]:
            nonlocal own
            if isinstance(statement, st.Flush):
                commit_whole(self.session, self._lock)
            elif not own or self.session.transaction is None:
                self.session.transaction = committing.new_transaction(self.session)
                own = True
            yield self.run(statement)

        try:
            yield from together(self.session, statements, self._lock, run)
            commit_whole(self.session, self._lock)
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        if self.session.transaction is not None:
            with self._lock:
                committing.rollback(self.session)

    def run(self, statement: st.Statement) -> Result:
        """Runs one statement. Raises FAILED_TRANSACTION."""
        self._check_may_run(statement)
        if self.pipelined and (isinstance(statement, (*CONTROL, st.Flush)) or statement.alone):
            if isinstance(statement, st.Rollback):
                self._roll_back()
            self.end_pipeline()
        if self.state == b"E" and isinstance(statement, st.Commit):
            self._roll_back()
            return Result("ROLLBACK")
        self.session.result_bytes = self.settings.limit(RESULT_SIZE)
        try:
            result = execute_statement(self.session, statement, self._lock)
        except Error as err:
            self.clients.traffic.ended(kind_of(statement.sql), err.sqlstate)
            raise
        self.clients.traffic.ended(kind_of(result.command))
        return result

    def _check_may_run(self, statement: st.Statement) -> None:
        """Raises FAILED_TRANSACTION unless the statement ends a failed transaction."""
        if self.state == b"E" and not isinstance(statement, _ENDS):
            raise error(
                "FAILED_TRANSACTION",
                "current transaction is aborted, commands ignored until end of transaction block",
            )

    def _asked(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Runs an action that reads the session."""
        with self._lock, self.session.numbered():
            return action(*arguments, **named)

    def parse(self, name: str, text: str, oids: Sequence[int]) -> None:
        """Prepares a statement."""
        given = list(map(parameter_of, oids))
        made = self._asked(preparing.prepare, self.session, name, text, given, self._check_may_run)
        self.clients.plans.note_prepare(self.session, text, tuple(oids), made)

    def parse_again(self, name: str, text: str, oids: Sequence[int]) -> bool:
        """Prepares a statement that some session has prepared before. False if it must be read."""
        session = self.session
        if self.state == b"E" or (name and name in session.prepared):
            return False
        found = self.clients.plans.prepared_before(session, text, tuple(oids))
        if found is None:
            return False
        session.prepared[name] = found
        return True

    def parameter_oids(self, name: str) -> list[int]:
        """The oids of the parameters' types. Raises UNDEFINED_PREPARED_STATEMENT."""
        return [number_of(p) for p in preparing.prepared_named(self.session, name).parameters]

    def bind(
        self, name: str, statement: str, forms: Sequence[int], values: Sequence[bytes | None], results: Sequence[int]
    ) -> None:
        """Creates a portal of a prepared statement with values."""
        prepared = preparing.prepared_named(self.session, statement)
        if name:
            self.session.cursors.check_new(name)
        if len(values) != len(prepared.parameters):
            raise error(
                "PROTOCOL_VIOLATION",
                f"bind message supplies {len(values)} parameters, but prepared statement "
                f'"{statement}" requires {len(prepared.parameters)}',
            )
        if prepared.statement is not None:
            self._check_may_run(prepared.statement)
        made = self._bound(prepared, forms, values)
        self.clients.plans.note_prepared(self.session, prepared)
        columns = self.columns(prepared.result)
        formats = tuple(for_each(results, len(columns or ()), "columns"))
        self.session.cursors.drop([name])
        portal = Portal(statement=made, described=prepared.columns, columns=columns, formats=formats)
        portal.run = None if made is None else partial(self.execute_portal, portal)
        self.session.cursors[name] = portal

    def portal_named(self, name: str) -> Portal:
        """A portal, which may be a cursor of DECLARE. Raises UNDEFINED_CURSOR."""
        cursor = self.session.cursors.named(name)
        if isinstance(cursor, Portal):
            return cursor
        portal = portal_of(cursor, self.columns(cursor.result))
        self.session.cursors[name] = portal
        return portal

    def execute_portal(self, portal: Portal) -> Result:
        """The result of a portal, whose statement runs at the first call. Raises RESULT_LIMIT."""
        if portal.result is not None:
            if portal.statement is not None:
                self._check_may_run(portal.statement)
            return replace(portal.result, notices=())
        if portal.statement is None and portal.bind is not None:
            portal.statement = portal.bind()
        assert portal.statement is not None
        result = portal.result = self.run(portal.statement)
        described = result.columns if has_rows(result) and not isinstance(result, CopyResult) else None
        preparing.check_columns(described, portal.described, result.table)
        self.session.cursors.check_size(self.session.result_bytes)
        if result.running is not None:
            portal.flow = Flow(result.running, self.session.cancellation)
        return result

    def changes_rows(self, portal: Portal) -> bool:
        """Whether the statement of a portal changes rows of tables."""
        if portal.plan is not None:
            return not isinstance(portal.plan, LookupPlan)
        return isinstance(portal.statement, WRITING)

    def begin_pipeline(self, portals: Sequence[Portal]) -> None:
        """Begins the transaction of a pipeline, unless one is open. Runs the INSERTs of portals in it."""
        if self.session.transaction is None:
            self.session.transaction = committing.new_transaction(self.session)
            self.pipelined = True
        for portal in portals:
            portal.result = None
            if not self.adds_rows(portal):
                self.execute_portal(portal)

    def end_pipeline(self) -> None:
        """Commits the transaction of a pipeline, or rolls it back after an error."""
        self.pipelined = False
        try:
            if self.session.transaction is not None and not self.session.transaction.failed:
                commit_whole(self.session, self._lock)
        finally:
            self._roll_back()

    def guarded(self, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of an action, whose errors fail the transaction."""
        try:
            return action(*arguments, **named)
        except Error:
            self._fail()
            raise

    def failed(self, err: Error) -> Error:
        """Fails the transaction. Returns the error."""
        self._fail()
        return err

    def sync(self) -> None:
        """Closes portals outside of a transaction."""
        if self.session.transaction is None:
            self.session.cursors.drop_unheld()

    def close(self) -> None:
        """Rolls back an open transaction and stops running queries."""
        self.session.cursors.drop(self.session.cursors)
        self.session.stop_running()
        self._roll_back()
        with self._lock, contextlib.suppress(Error):  # the next start drops what remains
            end_session(self.session)

    def _fail(self) -> None:
        if self.session.transaction is not None:
            self.session.transaction.failed = True

    def _read(self, text: str, dialect: str, parameters: Parameters) -> list[st.Statement]:
        """The statements of a text, including queries of the catalog. Raises STATEMENT_LIMIT."""
        self.clients.limits.check_words(text)
        if schema_meant(self.database, self.session.catalog) is None:  # otherwise the name is that of a schema
            text = without_database(text, self.database)
        return parse(text, dialect, parameters, self._read_query)

    def _read_query(self, tokens: Sequence[Token], text: str, parameters: Parameters) -> CatalogQuery | None:
        catalog = self.session.catalog
        return read_catalog_query(tokens, text, parameters, lambda name: relation_written(catalog, name) is not None)


class Host(Clients):
    """The clients of one database. Opens their sessions.

    dialect: the default for clients. files: whether statements of clients may read local files.
    """

    def __init__(self, database: OpenDatabase, limits: Limits, users: Users, dialect: str, *, files: bool) -> None:
        super().__init__(limits, users)
        self.database, self.dialect, self._files = database, dialect, files
        self._tables = CatalogTables()
        self.inserts, self.changes, self.lookups = inserts(database), changes(database), lookups(database)

    def open(self, options: dict[str, str], login: Login | None) -> Backend:
        """The backend of a client with the options of its startup message. login: None for a trusted client. Blocks.

        Raises UNDEFINED_OBJECT for an unknown option.
        """
        if options.get("replication", "false").lower() not in ("false", "off", "0", "no"):
            raise error("FEATURE_NOT_SUPPORTED", "replication connections are not supported")
        own = {} if login is None else self.users.role(login).settings
        limits = {} if self.users.is_admin(login) else {n: v for n, v in own.items() if n in LIMITS}
        name = options["user"]
        settings = Settings(self.dialect, name, {RESULT_SIZE: self.limits.result_size}, limits)
        settings.session = self.users.session(login, settings, files=self._files)
        backend = Backend(settings, name, options.get("database") or name, self._tables, self)
        given = {n: v for n, v in options.items() if n not in _NO_SETTINGS and not n.startswith("_pq_.")}
        wanted = {**own, **_command_line(options.get("options", "")), **given}
        for setting, value in wanted.items():
            try:
                backend.begin_with(setting, value.strip("'"))  # asyncpg quotes them as in SQL
            except Error:
                if setting.lower() not in _LENIENT:
                    raise
        settings.begin()
        return backend

    def warm(self) -> None:
        """Creates the tables of the catalog and imports the readers of all statements, so that the first client waits
        for neither. Blocks.
        """
        backend = self.open({"user": "watersmeet"}, None)
        try:
            self._tables.of(backend)
            backend.session.parse("SHOW standard_conforming_strings")
        finally:
            backend.close()

    async def grouped(self, one: SmallWaiting, most_ms: int) -> None:
        """Runs a small statement with those of other clients. Raises its error. most_ms: how long it may wait; 0: for
        any time.
        """
        one.session.cancellation.reset()
        one.until_s = time.monotonic() + most_ms / 1000 if most_ms else None
        if isinstance(one, InsertWaiting):
            await self.inserts.wait(one)
        elif isinstance(one, ChangeWaiting):
            await self.changes.wait(one)
        else:
            await self.lookups.wait(one)

    def close(self) -> None:
        """Stops the threads, after the last client has left."""
        super().close()
        self.inserts.close()
        self.changes.close()
        self.lookups.close()
        self._tables.close()


def _command_line(options: str) -> dict[str, str]:
    """`-c name=value` and `--name=value`, as libpq sends them. Raises PROTOCOL_VIOLATION."""
    words = shlex.split(options.replace("\\ ", '" "'))
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word = words.pop(0)
        elif word.startswith("-c"):
            word = word[2:]
        elif word.startswith("--"):
            word = word[2:].replace("-", "_")
        else:
            raise error("PROTOCOL_VIOLATION", f'invalid command-line argument "{word}"', hint="Write -c name=value.")
        name, _, value = word.partition("=")
        found[name] = value
    return found


_PART: Final = r'(?:"(?:[^"]++|"")*+"|[A-Za-z_][\w$]*+)'

#: A pattern: a name, with a dot before it or two other names after it; or a quoted text or comment.
_NAMED: Final = re.compile(
    rf"""\b[eE]'(?:[^'\\]++|\\.|'')*+' | '(?:[^']++|'')*+' | --[^\n]* | /\*.*?(?:\*/|\Z)
      | \$(?P<tag>[A-Za-z_]\w*+|)\$.*?(?:\$(?P=tag)\$|\Z)
      | (?P<inner>\.\s*)?(?<![\w"$])(?P<name>{_PART})(?:(?=(?P<dot>\s*\.\s*){_PART}\s*\.\s*{_PART})|)""",
    re.VERBOSE | re.DOTALL,
)


def without_database(text: str, database: str) -> str:
    """The text with spaces instead of the name of the database as a qualifier, so that spans stay valid.

    Unchanged if the name also occurs without a dot, as it may then be a relation or an alias.
    """
    if database.lower() not in text.lower():
        return text
    found = [m for m in _NAMED.finditer(text) if m["name"] and not m["inner"] and _meant(m["name"]) == database]
    if not all(m["dot"] for m in found):
        return text
    for match in found:
        start, end = match.start(), match.end("dot")
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _meant(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
