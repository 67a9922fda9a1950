"""What the server keeps for one client: its session, prepared statements and portals. All of it blocks.

One thread at a time works for a client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from watersmeet.database import transactions
from watersmeet.database.assignment import data_type
from watersmeet.database.locks import lock
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.variables import RESULT_SIZE
from watersmeet.dialects.schemas import relation_written, schema_meant
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.nodes import infer_open, open_parameter
from watersmeet.errors import Error, error
from watersmeet.server.catalog.answers import CatalogAnswers, CatalogTables
from watersmeet.server.clients import Clients, Limits, kind_of
from watersmeet.server.copying import read_copy
from watersmeet.server.databasenames import without_database
from watersmeet.server.flowing import Flow
from watersmeet.server.oids import TEXT, UNKNOWN, UUID, UUIDS, oid_of, sql_type
from watersmeet.server.parameters import Parameter, bound
from watersmeet.server.portals import Portal, Prepared, check_columns, result_formats
from watersmeet.server.preparing import READERS as PREPARING
from watersmeet.server.settings import Saved, Settings
from watersmeet.server.steps import CatalogStep, EngineStep, Outcome, Source, Step, marked, read_steps, uuid_casts
from watersmeet.server.utility import READERS as UTILITY
from watersmeet.session.connections.execute import commit_whole, execute_statement
from watersmeet.session.statements.describing import described_result
from watersmeet.values.types import BIGINT, SqlType

#: What is not the session's, by first word.
_READERS: Final = {**UTILITY, **PREPARING, "COPY": read_copy}
#: Statements that say where a transaction begins and ends.
_CONTROL: Final = (st.Begin, st.Commit, st.Rollback)


class Backend:
    """The state of one client. process: its number, as pg_backend_pid gives it."""

    process = 0

    def __init__(
        self,
        session: Session,
        user: str,
        database: str,
        tables: CatalogTables,
        clients: Clients,
        settings: Settings,
        limits: Limits,
    ) -> None:
        self.session = session
        self.user = user
        self.database = database
        self.clients = clients
        self.settings = settings
        self.limits = limits
        session.memory_bytes = limits.memory_bytes
        self.prepared: dict[str, Prepared] = {}
        self.portals: dict[str, Portal] = {}
        self.savepoints: list[tuple[str, transactions.Savepoint]] = []
        self.catalog = CatalogAnswers(self, tables)
        self._lock = lock("connection")
        self._started = session.variables.saved()
        self._reported: dict[str, str] = {}
        self._saved: Saved | None = None
        """What was set when the transaction began."""
        self._cursors: frozenset[str] = frozenset()
        """The names of the cursors that were there then."""

    def begin_with(self, name: str, value: str) -> None:
        """Sets what a client asks for when it connects."""
        if name.lower() == "role":
            quoted = value.replace('"', '""')
            for step in read_steps(self._source(f'SET ROLE "{quoted}"')):
                step.run(self)
        else:
            self.settings.set(name, value)

    def begin(self) -> None:
        """What is set now is what RESET ALL goes back to."""
        self.settings.begin()
        self._started = self.session.variables.saved()

    @property
    def state(self) -> bytes:
        """The state of the transaction, as ReadyForQuery has it."""
        transaction = self.session.transaction
        return b"I" if transaction is None else b"E" if transaction.failed else b"T"

    def changed_settings(self) -> dict[str, str]:
        """The settings that changed since the last call and that clients follow."""
        now = self.settings.reported()
        changed = {n: v for n, v in now.items() if self._reported.get(n) != v}
        self._reported = now
        return changed

    def simple(self, text: str) -> Generator[Outcome]:
        """Runs the statements of a text, one after the other. Several are one transaction, as in a script.

        An outcome without a tag is that of a text without statements.
        """
        try:
            self.drop_portals("")
            steps = self._read(text)
            if not steps:
                yield Outcome("")
            alone = len(steps) == 1 or any(
                isinstance(s, EngineStep) and isinstance(s.statement, _CONTROL) for s in steps
            )
            if alone or self.session.transaction is not None:
                for step in steps:
                    yield self.run(step)
            else:
                yield from self._whole(steps)
        except Error:
            self._fail()
            raise
        finally:
            self._after()

    def _whole(self, steps: Sequence[Step]) -> Iterator[Outcome]:
        """Runs steps as one transaction. FLUSH commits what stands before it."""
        own = False
        try:
            for step in steps:
                flushes = isinstance(step, EngineStep) and isinstance(step.statement, st.Flush)
                if flushes:
                    commit_whole(self.session, self._lock)
                elif not own or self.session.transaction is None:
                    self._began()
                    self.session.transaction = transactions.new_transaction(self.session)
                    own = True
                yield self.run(step)
            commit_whole(self.session, self._lock)
        finally:
            if self.session.transaction is not None:
                with self._lock:
                    transactions.rollback(self.session)
                self._ended(rolled_back=True)

    def run(self, step: Step) -> Outcome:
        """Runs one step. FAILED_TRANSACTION where only ROLLBACK is left."""
        self._check_may_run(step)
        if self.state == b"E" and isinstance(step, EngineStep) and isinstance(step.statement, st.Commit):
            with self._lock:
                transactions.rollback(self.session)
            self._ended(rolled_back=True)
            return Outcome("ROLLBACK")
        self.session.result_bytes = self.settings.limit(RESULT_SIZE)
        alone = self.session.transaction is None
        try:
            outcome = step.run(self)
        except Error as err:
            if not alone and self.session.transaction is None:  # its COMMIT failed
                self._ended(rolled_back=True)
            kind = kind_of(step.statement.sql if isinstance(step, EngineStep) else "")
            self.clients.traffic.ended(kind, err.sqlstate)
            raise
        self.clients.traffic.ended(kind_of(outcome.tag))
        if alone and self.session.transaction is not None:
            self._began()
        elif not alone and self.session.transaction is None:
            self._ended(rolled_back=outcome.tag == "ROLLBACK")
        return outcome

    def _began(self) -> None:
        """A transaction begins, or has begun: by what sets nothing else."""
        self._saved, self._cursors = self.settings.saved(), frozenset(n for n, p in self.portals.items() if p.is_cursor)

    def _ended(self, *, rolled_back: bool) -> None:
        """The transaction has ended. After one that was rolled back all is set as before, and its cursors are gone."""
        if rolled_back and self._saved is not None:
            self.settings.restore(self._saved)
            self.drop_portals(*(self.portals.keys() - self._cursors))
        self._saved = None

    def _check_may_run(self, step: Step) -> None:
        """FAILED_TRANSACTION where only the end of the transaction is left."""
        statement = step.statement if isinstance(step, EngineStep) else None
        ends = isinstance(statement, (st.Commit, st.Rollback)) or getattr(step, "recovers", False)
        if self.state == b"E" and not ends:
            raise error(
                "FAILED_TRANSACTION",
                "current transaction is aborted, commands ignored until end of transaction block",
            )

    def execute(self, statement: st.Statement) -> Result:
        """Runs a statement of the session."""
        return execute_statement(self.session, statement, self._lock)

    def locked(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """What `action` does with the session, as a statement of it."""
        with self._lock, self.session.numbered():
            self.session.notices.clear()
            result = action(self.session, *arguments)
            return replace(result, notices=tuple(self.session.notices))

    def described(self, statement: st.Statement) -> Result | None:
        """The columns of a statement of the session, as a result without rows."""
        found: Result | None = self.asked(described_result, statement)
        return found

    def asked(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """What `action` finds out of the session."""
        with self._lock, self.session.numbered():
            return action(self.session, *arguments)

    def parse(self, name: str, text: str, oids: Sequence[int]) -> None:
        """Prepares a statement: its columns, and the types of its parameters where the client leaves them open."""
        if name and name in self.prepared:
            raise error("DUPLICATE_PREPARED_STATEMENT", f'prepared statement "{name}" already exists')
        self.prepared.pop(name, None)
        numbers = marked(text)[1]
        count = max([len(oids), *numbers])
        if count > 1 << 16 or any(n == 0 for n in numbers):
            raise error("INVALID_PARAMETER", "there is no parameter $0" if 0 in numbers else "too many parameters")
        wanted = [*oids, *[0] * (count - len(oids))]
        cast = uuid_casts(text)
        uuids = [cast.get(n, oid if oid in (UUID, UUIDS) else 0) for n, oid in enumerate(wanted, 1)]
        wanted = [uuid if oid in (0, UNKNOWN) else oid for oid, uuid in zip(wanted, uuids, strict=True)]
        given = [sql_type(uuid or oid) for oid, uuid in zip(wanted, uuids, strict=True)]
        inferred: dict[int, Parameter] = {}
        open_ones = [_open(i, kind, inferred) for i, kind in enumerate(given)]
        steps = self._steps(text, open_ones)
        if len(steps) > 1:
            raise error("SYNTAX_ERROR", "cannot insert multiple commands into a prepared statement", sql=text)
        columns, described = None, self._seen()
        _infer_counts(steps)
        if steps:
            self._check_may_run(steps[0])
            columns = steps[0].describe(self)
        parameters = []
        for i, kind in enumerate(given):
            if kind is not None:
                parameters.append(Parameter(wanted[i], kind, uuids[i]))
            else:
                parameters.append(inferred.get(i, Parameter(TEXT, None)))
        self.prepared[name] = Prepared(text, tuple(parameters), columns, empty=not steps, described=described)

    def bind(
        self, name: str, statement: str, forms: Sequence[int], values: Sequence[bytes | None], results: Sequence[int]
    ) -> None:
        """Makes a portal of a prepared statement with values."""
        prepared = self.prepared_named(statement)
        if name and name in self.portals:
            raise error("DUPLICATE_CURSOR", f'cursor "{name}" already exists')
        if len(values) != len(prepared.parameters):
            raise error(
                "PROTOCOL_VIOLATION",
                f"bind message supplies {len(values)} parameters, but prepared statement "
                f'"{statement}" requires {len(prepared.parameters)}',
            )
        step = self.bound_step(prepared, values, forms)
        formats = result_formats(results, prepared.columns)
        self.drop_portals(name)
        self.portals[name] = Portal(step, prepared.columns, formats)

    def bound_step(self, prepared: Prepared, values: Sequence[bytes | None], forms: Sequence[int] = ()) -> Step | None:
        """What a prepared statement does with values, as many as it has parameters; None for an empty one.

        PREPARED_RESULT_CHANGED if its rows would have other columns than when it was prepared.
        """
        literals = bound(values, forms, prepared.parameters)
        if prepared.empty:
            return None
        step = self._steps(prepared.text, literals)[0]
        self._check_may_run(step)
        seen = self._seen()
        if not isinstance(step, CatalogStep) and (seen is None or seen != prepared.described):
            check_columns(step.describe(self), prepared.columns)
            prepared.described = seen
        return step

    def _seen(self) -> Hashable:
        """What the columns of a statement follow from, beside its text; None after changes of definitions."""
        transaction, variables = self.session.transaction, self.session.variables
        if transaction is not None and transaction.definitions:
            return None
        return self.session.database.catalog.version, self.session.dialect, variables.get("search_path")

    def execute_portal(self, portal: Portal) -> Outcome:
        """Runs what a portal stands for, at its first time. RESULT_LIMIT."""
        if portal.outcome is None:
            assert portal.step is not None
            portal.outcome = self.run(portal.step)
            check_columns(portal.outcome.columns, portal.columns, portal.outcome.table)
            self.check_portals()
            portal.flow = self.flow_of(portal.outcome)
            return portal.outcome
        if portal.step is not None:
            self._check_may_run(portal.step)
        return replace(portal.outcome, notices=())

    def check_portals(self) -> None:
        """RESULT_LIMIT if what the portals hold together is more than one result may have; then there are none."""
        most_bytes = self.settings.limit(RESULT_SIZE)
        held = [p.outcome.table for p in self.portals.values() if p.outcome is not None and p.outcome.table is not None]
        if most_bytes and sum(table.nbytes for table in held) > most_bytes:
            self.portals.clear()
            raise error(
                "RESULT_LIMIT",
                "the results that cursors and portals hold are too large",
                detail=f"They may have {most_bytes} bytes here, all together. They were closed.",
                hint="Close cursors that are not needed, ask for less, or set max_result_size.",
            )

    def prepared_named(self, name: str) -> Prepared:
        """UNDEFINED_PREPARED_STATEMENT."""
        if name not in self.prepared:
            shown = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise error("UNDEFINED_PREPARED_STATEMENT", f"{shown} does not exist")
        return self.prepared[name]

    def portal_named(self, name: str) -> Portal:
        """UNDEFINED_CURSOR."""
        if name not in self.portals:
            raise error("UNDEFINED_CURSOR", f'cursor "{name}" does not exist' if name else "there is no unnamed portal")
        return self.portals[name]

    def drop_portals(self, *names: str) -> None:
        """Ends portals of these names that there are."""
        for name in names:
            portal = self.portals.pop(name, None)
            if portal is not None:
                portal.close()

    def flow_of(self, outcome: Outcome, *, waits: bool = True) -> Flow | None:
        """The rows of an outcome, for a portal, if they are of a query that runs."""
        if outcome.running is None:
            return None
        return Flow(outcome.running, self.session.cancellation, waits=waits)

    def require_transaction(self, what: str) -> None:
        """NO_TRANSACTION outside of one."""
        if self.session.transaction is None:
            raise error("NO_TRANSACTION", f"{what} can only be used in transaction blocks")

    def savepoint_named(self, name: str) -> int:
        """The place of the newest savepoint of that name. UNDEFINED_SAVEPOINT."""
        places = [i for i, (n, _) in enumerate(self.savepoints) if n == name]
        if not places:
            raise error("UNDEFINED_SAVEPOINT", f'savepoint "{name}" does not exist')
        return places[-1]

    def guarded(self, action: Any, *arguments: Any) -> Any:
        """What `action` returns; an error of it lets the transaction fail."""
        try:
            return action(*arguments)
        except Error:
            self._fail()
            raise

    def failed(self, err: Error) -> Error:
        """The error, after it has let the transaction fail."""
        self._fail()
        return err

    def sync(self) -> None:
        """What follows Sync: outside of a transaction portals end."""
        self._after()

    def reset_settings(self) -> None:
        """RESET ALL."""
        self.settings.reset()
        self.session.variables.restore(self._started)

    def discard_all(self) -> None:
        """DISCARD ALL. TRANSACTION_STATE in a transaction."""
        self.session.require_no_transaction("DISCARD ALL")
        self.drop_portals(*self.portals)
        self.prepared.clear()
        self.reset_settings()

    def close(self) -> None:
        """Rolls an open transaction back and stops what runs."""
        self.drop_portals(*self.portals)
        self.session.stop_running()
        with self._lock:
            if self.session.transaction is not None:
                transactions.rollback(self.session)

    def _read(self, text: str) -> list[Step]:
        try:
            return self._steps(text)
        except Error as err:
            self.clients.traffic.ended(kind_of(""), err.sqlstate)
            raise

    def _steps(self, text: str, parameters: Sequence[exp.Expression] = ()) -> list[Step]:
        """The steps of a text. STATEMENT_LIMIT; QUERY_CANCELED."""
        computing = self.session.cancellation.computing
        computing(self.limits.check_words, text)
        return computing(read_steps, self._source(text, parameters))

    def _after(self) -> None:
        if self.session.transaction is None:
            self.settings.end_transaction()
            self.savepoints.clear()
            self.drop_portals(*(n for n, p in self.portals.items() if not p.held))

    def _fail(self) -> None:
        if self.session.transaction is not None:
            self.session.transaction.failed = True

    def _source(self, text: str, parameters: Sequence[exp.Expression] = ()) -> Source:
        if schema_meant(self.database, self.session.catalog) is None:  # otherwise that is what the name means
            text = without_database(text, self.database)
        catalog = self.session.catalog
        return Source(
            text, self.session.dialect, _READERS, lambda name: relation_written(catalog, name) is not None, parameters
        )


def _infer_counts(steps: Sequence[Step]) -> None:
    """Parameters of LIMIT, OFFSET and FETCH are numbers; the binder reads these itself."""
    for step in steps:
        query = getattr(step.statement, "query", None) if isinstance(step, EngineStep) else None
        for node in query.find_all(exp.Limit, exp.Offset, exp.Fetch) if isinstance(query, exp.Expression) else ():
            number = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
            infer_open(number, BIGINT)


def _open(number: int, kind: SqlType | None, inferred: dict[int, Parameter]) -> exp.Expression:
    """What stands for a parameter whose value is not known yet."""
    if kind is not None:
        return exp.Cast(this=open_parameter(lambda *_: None), to=data_type(kind))

    def infer(found: SqlType, oid: int = 0) -> None:
        inferred.setdefault(number, Parameter(oid or oid_of(found), found))

    return open_parameter(infer)
