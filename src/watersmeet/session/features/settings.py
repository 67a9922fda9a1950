"""Statements about the session itself, in every dialect: variables, transactions, savepoints, DISCARD, FLUSH, TRUNCATE.

PostgreSQL, "SAVEPOINT", "DISCARD", "SET TRANSACTION", "TRUNCATE".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from sqlglot.tokens import TokenType

from watersmeet.catalog import is_temporary
from watersmeet.database.committing import (
    commit,
    flush,
    new_transaction,
    own_transaction,
    release_savepoint,
    rollback,
    rollback_to,
    savepoint,
)
from watersmeet.database.definitions import USER_SCHEMA, remove, set_schema
from watersmeet.database.filling import BackgroundFills
from watersmeet.database.sessions.context import Nested, Session, error_at
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.database.sessions.sequences import owned_by, restart
from watersmeet.database.sessions.snapshots import lock_rows
from watersmeet.database.sessions.variables import variables
from watersmeet.database.transaction import ISOLATIONS, Isolation, set_modes
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.readers import reads, statements_read
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import listed, schema_meant
from watersmeet.dialects.statements.preparing import two_phase
from watersmeet.dialects.statements.utility import LISTS
from watersmeet.dialects.tree.statements import (
    Accepted,
    Begin,
    Commit,
    Delete,
    Flush,
    Name,
    Rollback,
    SetVariable,
    ShowVariable,
    Statement,
)
from watersmeet.dialects.tree.tokens import Cursor, not_supported, quoted, read_value, span_of, unquoted
from watersmeet.dialects.variables import Variable
from watersmeet.errors import Error, did_you_mean
from watersmeet.session.features.roles import put_role
from watersmeet.session.handlers import handler_of, handles, handles_nested
from watersmeet.store.sequences import Count
from watersmeet.subscribing.updates import channels_of


@reads("SET")
def read_set(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET …: the cursor stands after SET."""
    local = not cursor.take("SESSION") and cursor.take("LOCAL")
    if cursor.take("SCHEMA"):
        return _set_schema(cursor, base)
    if cursor.take("TIME", "ZONE"):
        name = "timezone"
        if cursor.take("INTERVAL"):
            offset = cursor.string()
            cursor.take("HOUR", "TO", "MINUTE")
            cursor.end()
            return SetVariable(**base, name=name, value=offset, local=local)
        if cursor.take("LOCAL"):
            cursor.end()
            return SetVariable(**base, name=name, value=None, local=local)
    elif (of_mode := read_set_mode(cursor, base)) is not None:
        return of_mode
    else:
        name = _setting(cursor)
        if not cursor.take("TO"):
            cursor.expect("=")
    if cursor.take("DEFAULT"):
        cursor.end()
        return SetVariable(**base, name=name, value=None, local=local)
    read = read_schema if name == "search_path" else read_value
    values = [read(cursor)]
    while cursor.take(","):
        values.append(read(cursor))
    cursor.end()
    return SetVariable(**base, name=name, value=", ".join(values), local=local)


def _set_schema(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """SET SCHEMA 'name' (SQLstream, PostgreSQL): the text is parsed as a name."""
    span = span_of(cursor.rest[:1]) if not cursor.done else base["span"]
    name = unquoted(cursor.string(), cursor.folding)
    cursor.end()
    return SetVariable(**base, name="search_path", value=None, schema=Name(name, span))


def read_schema(cursor: Cursor) -> str:
    """A schema of `search_path` as the variable contains it: quoted where necessary."""
    token = cursor.current
    if token is not None and token.token_type in (TokenType.STRING, TokenType.NATIONAL_STRING):
        return quoted(unquoted(cursor.string(), cursor.folding))
    return quoted(cursor.name(reserved=True).name)


@reads("RESET")
def read_reset(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """RESET name, RESET ALL, RESET SESSION AUTHORIZATION."""
    if cursor.take("ALL"):
        cursor.end()
        return Discard(**base, what="settings")
    if cursor.take("SESSION", "AUTHORIZATION"):
        cursor.end()
        return Accepted(**base, command="RESET")
    name = _setting(cursor)
    cursor.end()
    return SetVariable(**base, name=name, value=None)


def _setting(cursor: Cursor) -> str:
    """The name of a variable, which may have dots."""
    name = cursor.word().name
    while cursor.take("."):
        name += "." + cursor.word().name
    return name


@reads("BEGIN")
@reads("START")
def read_begin(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """BEGIN or START."""
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    modes = _modes(cursor)
    cursor.end()
    return Begin(**base, read_only=bool(modes.read_only), isolation=modes.isolation)


@dataclass
class _Modes:
    """The modes of a transaction; None for one that is not specified."""

    isolation: Isolation | None = None
    read_only: bool | None = None


def _modes(cursor: Cursor) -> _Modes:
    """Reads the modes of BEGIN and SET TRANSACTION. DEFERRABLE changes nothing: no transaction waits for others."""
    found = _Modes()
    while not cursor.done:
        if cursor.take("ISOLATION", "LEVEL"):
            level = next((n for n in ISOLATIONS if cursor.take(*n.upper().split())), None)
            if level is None:
                raise cursor.error(detail="The levels: " + ", ".join(n.upper() for n in ISOLATIONS) + ".")
            found.isolation = level
        elif cursor.take("READ", "ONLY"):
            found.read_only = True
        elif cursor.take("READ", "WRITE"):
            found.read_only = False
        elif not (cursor.take("NOT", "DEFERRABLE") or cursor.take("DEFERRABLE") or cursor.take(",")):
            break
    return found


@reads("COMMIT")
@reads("END")
def read_commit(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """COMMIT or END."""
    if cursor.at("PREPARED"):
        return two_phase(cursor, base)
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    cursor.end()
    return Commit(**base)


@reads("FLUSH")
def read_flush(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """FLUSH."""
    cursor.end()
    return Flush(**base)


@reads("WAIT")
def read_wait(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`WAIT [{TABLE | MATERIALIZED VIEW | SINK | INDEX} name]`. All fills end before one that waits for another."""
    if any(cursor.take(*kind) for kind in (("TABLE",), ("MATERIALIZED", "VIEW"), ("SINK",), ("INDEX",))):
        cursor.relation_name()
    cursor.end()
    return Flush(**base, fills=True)


@dataclass(frozen=True, kw_only=True)
class SetTransaction(Statement):
    """`SET TRANSACTION modes`; whole: `SET SESSION CHARACTERISTICS AS TRANSACTION modes`."""

    takes: ClassVar[str | None] = None

    whole: bool
    isolation: Isolation | None
    read_only: bool | None


@dataclass(frozen=True, kw_only=True)
class Savepoint(Statement):
    """`SAVEPOINT name`."""

    takes: ClassVar[str | None] = None

    name: str


@dataclass(frozen=True, kw_only=True)
class ReleaseSavepoint(Statement):
    """`RELEASE [SAVEPOINT] name`."""

    takes: ClassVar[str | None] = None

    name: str


@dataclass(frozen=True, kw_only=True)
class RollbackTo(Statement):
    """`ROLLBACK TO [SAVEPOINT] name`."""

    takes: ClassVar[str | None] = None

    name: str


@dataclass(frozen=True, kw_only=True)
class Truncate(Statement):
    """`TRUNCATE [TABLE] names [RESTART IDENTITY]`. restarts: whether the sequences of the tables begin again."""

    takes: ClassVar[str | None] = None
    once: ClassVar[bool] = True

    names: tuple[Name, ...]
    restarts: bool = False


@dataclass(frozen=True, kw_only=True)
class Discard(Statement):
    """`DISCARD what`, and RESET ALL."""

    takes: ClassVar[str | None] = None

    what: Literal["all", "plans", "sequences", "temp", "temporary", "settings"]


_DISCARDED: Final = ("all", "plans", "sequences", "temp", "temporary")


@reads("SAVEPOINT")
def read_savepoint(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after SAVEPOINT."""
    return Savepoint(**base, name=_last_name(cursor))


@reads("RELEASE")
def read_release(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after RELEASE."""
    cursor.take("SAVEPOINT")
    return ReleaseSavepoint(**base, name=_last_name(cursor))


@reads("ROLLBACK")
@reads("ABORT")
def read_rollback(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """ROLLBACK, ABORT, ROLLBACK TO."""
    if cursor.at("PREPARED"):
        return two_phase(cursor, base)
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    if cursor.take("TO"):
        cursor.take("SAVEPOINT")
        return RollbackTo(**base, name=_last_name(cursor))
    cursor.end()
    return Rollback(**base)


def _last_name(cursor: Cursor) -> str:
    name = cursor.name().name
    cursor.end()
    return name


def _tables(cursor: Cursor) -> tuple[Name, ...]:
    """Reads `[TABLE] [ONLY] name, …`."""
    cursor.take("TABLE")
    names = []
    while True:
        cursor.take("ONLY")
        names.append(cursor.relation_name())
        if not cursor.take(","):
            return tuple(names)


@reads("TRUNCATE")
def read_truncate(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after TRUNCATE."""
    names = _tables(cursor)
    restarts = cursor.take("RESTART", "IDENTITY")
    if not restarts:
        cursor.take("CONTINUE", "IDENTITY")
    if not cursor.take("CASCADE"):
        cursor.take("RESTRICT")
    cursor.end()
    return Truncate(**base, names=names, restarts=restarts)


@dataclass(frozen=True, kw_only=True)
class LockTables(Statement):
    """`LOCK [TABLE] names [IN mode MODE] [NOWAIT]`. excludes: whether the mode excludes writers."""

    takes: ClassVar[str | None] = None

    names: tuple[Name, ...]
    excludes: bool


#: The modes of LOCK that exclude no writer.
_SHARED: Final = (("ACCESS", "SHARE"), ("ROW", "SHARE"), ("ROW", "EXCLUSIVE"))
_EXCLUDING: Final = (
    ("SHARE", "UPDATE", "EXCLUSIVE"), ("SHARE", "ROW", "EXCLUSIVE"), ("SHARE",), ("ACCESS", "EXCLUSIVE"),
    ("EXCLUSIVE",),
)  # fmt: skip


@reads("LOCK")
def read_lock(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after LOCK."""
    names = _tables(cursor)
    excludes = True
    if cursor.take("IN"):
        excludes = not any(cursor.take(*words) for words in _SHARED)
        if excludes and not any(cursor.take(*words) for words in _EXCLUDING):
            raise cursor.error(detail="A mode was expected here, such as ACCESS SHARE.")
        cursor.expect("MODE")
    cursor.take("NOWAIT")  # LOCK never waits
    cursor.end()
    return LockTables(**base, names=names, excludes=excludes)


@reads("DISCARD")
def read_discard(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is after DISCARD."""
    for what in _DISCARDED:
        if cursor.take(what.upper()):
            cursor.end()
            return Discard(**base, what=what)
    raise cursor.error()


def read_set_mode(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """SET TRANSACTION …, SET SESSION CHARACTERISTICS …, SET SESSION AUTHORIZATION DEFAULT, SET NAMES; None for other
    settings. The cursor is after SET [SESSION | LOCAL].
    """
    if cursor.take("NAMES"):
        value = read_value(cursor)
        cursor.end()
        return SetVariable(**base, name="client_encoding", value=value)
    if cursor.take("AUTHORIZATION"):
        cursor.expect("DEFAULT")
        cursor.end()
        return Accepted(**base, command="SET")
    whole = cursor.take("CHARACTERISTICS", "AS", "TRANSACTION")
    if not whole and not cursor.take("TRANSACTION"):
        return None
    if cursor.at("SNAPSHOT"):
        raise not_supported("SET TRANSACTION SNAPSHOT", cursor.text, span_of(cursor.rest))
    modes = _modes(cursor)
    if not cursor.done:
        raise cursor.error()
    return SetTransaction(**base, whole=whole, isolation=modes.isolation, read_only=modes.read_only)


@handles(SetVariable)
def set_variable(session: Session, statement: SetVariable) -> Result:
    """SET name = value, RESET name."""
    if statement.schema is not None:
        return set_schema(session, statement, statement.schema)
    try:
        variable = _put_variable(session, statement.name, statement.value, local=statement.local)
    except Error as err:
        raise _of_processor(session, statement, err) from None
    if not variable.effect:
        purpose = variable.description[:1].lower() + variable.description[1:]
        session.notice(f"{variable.name} has no effect: in {variable.system} it sets {purpose}")
    if variable.name == "search_path" and statement.value is not None:
        _tell_missing(session)
    return Result("SET")


def put_setting(session: Session, name: str, value: str, *, local: bool) -> None:
    """Sets the role or a variable, like SET. Raises the errors of SET ROLE and of `Variables.set`."""
    if name.lower() == "role":
        put_role(session, value, local=local)
    else:
        _put_variable(session, name, value, local=local)


def _put_variable(session: Session, name: str, value: str | None, *, local: bool) -> Variable:
    """local: only until the transaction ends."""
    known, before = session.variables.own(name)
    transaction = session.transaction
    variable = session.variables.set(name, value)
    if transaction is not None and local:
        transaction.local.setdefault(known, before)
    elif transaction is not None:
        transaction.local.pop(known, None)
    elif local:
        session.variables.put_back({known: before})
    return variable


@handles(SetTransaction)
def set_transaction(session: Session, statement: SetTransaction) -> Result:
    """SET TRANSACTION, SET SESSION CHARACTERISTICS. Raises TRANSACTION_STATE after the first query."""
    transaction = session.transaction
    if statement.whole:
        if statement.read_only:
            raise not_supported(
                "a session of read-only transactions", statement.text, statement.span, hint="Write BEGIN READ ONLY."
            )
        if statement.isolation is not None:
            session.variables.set_isolation(statement.isolation)
        return Result("SET")
    if transaction is None:
        session.notice("SET TRANSACTION can only be used in transaction blocks")
        return Result("SET")
    set_modes(transaction, statement.isolation, statement.read_only)
    return Result("SET")


@handles(LockTables)
def lock_tables(session: Session, statement: LockTables) -> Result:
    """LOCK TABLE. In a mode that excludes writers, the transaction can't commit changes if another one has changed the
    tables since, as after SELECT … FOR UPDATE. Raises NO_TRANSACTION outside of a transaction.
    """
    transaction = session.transaction
    if transaction is None:
        raise error_at(statement, statement.span, "NO_TRANSACTION", "LOCK TABLE can only be used in transaction blocks")
    found = [session.relation(name, statement) for name in statement.names]
    for relation in found:
        session.require("SELECT", relation, statement.text)
    if statement.excludes:
        lock_rows(session.database, transaction, session.catalog, [r.id for r in found])
    return Result("LOCK TABLE")


@handles(Discard)
def discard(session: Session, statement: Discard) -> Result:
    """DISCARD, RESET ALL. Raises TRANSACTION_STATE for DISCARD ALL in a transaction."""
    if statement.what == "settings":
        session.variables.reset()
        return Result("RESET")
    if statement.what == "all":
        session.require_no_transaction("DISCARD ALL")
        session.cursors.drop(session.cursors)
        session.variables.reset()
        if session.inbox is not None:
            channels_of(session.database).unlisten(session.inbox, None)
    if statement.what in ("all", "temp", "temporary"):
        drop_temporaries(session)
    if statement.what in ("all", "sequences"):
        session.sequence_values.clear()
    if statement.what in ("all", "plans"):
        session.prepared.clear()
    return Result(f"DISCARD {statement.what.upper()}")


def end_session(session: Session) -> None:
    """Ends what the session alone has: temporary relations, and channels to which it listens."""
    if session.inbox is not None and session.inbox.channels:
        channels_of(session.database).unlisten(session.inbox, None)
    drop_temporaries(session)


def drop_temporaries(session: Session) -> None:
    """Drops the temporary relations of a session that ends, or after DISCARD."""
    schema = session.temporaries.schema
    session.temporaries.on_commit.clear()
    if schema:
        _drop_all(session, {r.id for r in session.database.catalog.relations.values() if r.schema == schema})


def drop_leftovers(session: Session) -> None:
    """Drops the temporary relations of sessions that a crash has ended."""
    _drop_all(session, {r.id for r in session.database.catalog.relations.values() if is_temporary(r.schema)})


def _drop_all(session: Session, ids: set[str]) -> None:
    if ids:
        with own_transaction(session):
            remove(session, ids)


def after_commit(session: Session) -> None:
    """Carries ON COMMIT of temporary tables out, when no transaction is open."""
    effects = session.temporaries.on_commit
    if session.transaction is not None or not effects:
        return
    known = session.catalog.relations
    for relation_id, effect in list(effects.items()):
        if relation_id not in known or effect == "drop":
            del effects[relation_id]
            _drop_all(session, {relation_id} & known.keys())
        else:
            table = ".".join(quoted(n) for n in (known[relation_id].schema, known[relation_id].name))
            (statement,) = parse(f"DELETE FROM {table}", session.dialect)
            handler = handler_of(Delete)
            assert handler is not None
            handler(session, statement)


@handles(Accepted)
def accept(session: Session, statement: Accepted) -> Result:
    """A statement that changes nothing. Raises UNDEFINED_RELATION if the relation that it names does not exist."""
    if statement.of is not None and not (statement.if_exists and session.find(statement.of) is None):
        session.relation(statement.of, statement)
    if statement.notice:
        session.notice(statement.notice)
    return Result(statement.command)


def _of_processor(session: Session, statement: SetVariable, failure: Error) -> Error:
    """The error with the statement's span; FEATURE_NOT_SUPPORTED for a name that may be an unsupported processor
    setting of Lenses.
    """
    if (
        failure.condition == "UNDEFINED_OBJECT"
        and session.semantics.processors_have_settings
        and "." in statement.name
        and did_you_mean(statement.name, variables()) is None
    ):
        return not_supported(
            f"setting {statement.name}",
            statement.text,
            statement.span,
            hint="SHOW ALL lists the settings. Those of topics are defaults.topic.partitions and similar.",
        )
    failure.sql, failure.span = statement.text, statement.span
    return failure


def _tell_missing(session: Session) -> None:
    """Adds a notice for each schema of `search_path` that does not exist yet."""
    for name in listed(session.variables.get("search_path")):
        if name != USER_SCHEMA and schema_meant(name, session.catalog) is None:
            session.notice(f'schema "{name}" does not exist')


@handles(ShowVariable)
def show_variable(session: Session, statement: ShowVariable) -> Result:
    """SHOW name."""
    try:
        value = session.variables.shown(statement.name)
        if statement.name == "transaction_isolation":
            value = session.isolation if session.transaction is None else session.transaction.isolation
    except Error as err:
        err.sql, err.span = statement.text, statement.name_span
        features = statements_read(language_named(session.dialect).semantics)
        lists = (words.removeprefix("SHOW ").lower() for words in features if words.startswith("SHOW "))
        err.hint = did_you_mean(statement.name, (*variables(), *LISTS, *lists)) or err.hint
        raise
    return text_result("SHOW", (statement.name,), [(value,)])


@handles(Begin)
def begin_statement(session: Session, statement: Begin) -> Result:
    """BEGIN."""
    if session.transaction is not None:
        session.notice("there is already a transaction in progress")
        return Result("BEGIN")
    level = next((n for n in ISOLATIONS if n == statement.isolation), None)
    session.transaction = new_transaction(session, read_only=statement.read_only, isolation=level)
    return Result("BEGIN")


@handles(Commit)
def commit_statement(session: Session, statement: Commit) -> Result:
    """COMMIT."""
    del statement
    if session.transaction is None:
        session.notice("there is no transaction in progress")
    else:
        commit(session)
    return Result("COMMIT")


@handles(Rollback)
def rollback_statement(session: Session, statement: Rollback) -> Result:
    """ROLLBACK."""
    del statement
    if session.transaction is None:
        session.notice("there is no transaction in progress")
    else:
        rollback(session)
    return Result("ROLLBACK")


@handles(Savepoint)
def savepoint_statement(session: Session, statement: Savepoint) -> Result:
    """SAVEPOINT."""
    savepoint(session, statement.name)
    return Result("SAVEPOINT")


@handles(ReleaseSavepoint)
def release_statement(session: Session, statement: ReleaseSavepoint) -> Result:
    """RELEASE SAVEPOINT."""
    release_savepoint(session, statement.name)
    return Result("RELEASE")


@handles(RollbackTo)
def rollback_to_statement(session: Session, statement: RollbackTo) -> Result:
    """ROLLBACK TO SAVEPOINT."""
    rollback_to(session, statement.name)
    return Result("ROLLBACK")


@handles(Flush)
def flush_statement(session: Session, statement: Flush) -> Result:
    """FLUSH: waits until all views reflect all earlier commits; WAIT: also until views of the background are filled."""
    if statement.fills and (fills := session.database.service(BackgroundFills)) is not None:
        session.require_no_transaction("WAIT")
        fills.wait(session)
    flush(session)
    return Result("WAIT" if statement.fills else "FLUSH")


@handles_nested(Truncate)
def truncate(session: Session, statement: Truncate, nested: Nested) -> Result:
    """TRUNCATE: deletes all rows of the tables, or of none."""
    several = len(statement.names) > 1 or statement.restarts
    with own_transaction(session) if several else contextlib.nullcontext():
        for name in statement.names:
            nested.run(Delete(text=statement.text, sql=statement.sql, span=statement.span, table=name, alias=None))
        if statement.restarts:
            tables = [session.relation(name, statement).id for name in statement.names]
            for sequence in owned_by(session.catalog, tables):
                restart(session, sequence, Count(sequence.numbers.first))
    return Result("TRUNCATE TABLE")
