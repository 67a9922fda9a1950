"""The functions that run statements: one table, in which features register themselves (`handles`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from watersmeet.database.filling import Bound
from watersmeet.database.sessions.context import Nested, Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import load_features, plug_in
from watersmeet.dialects.statements.alter import LimitSink, SetViewOption
from watersmeet.dialects.statements.constraints import AddConstraint, DropConstraint, RenameConstraint, SetConstraints
from watersmeet.dialects.statements.dml import CopyFrom, CopyIn, CopyOut, CopyTo
from watersmeet.dialects.statements.explaining import ExplainAnalyze, ExplainRow
from watersmeet.dialects.statements.preparing import Deallocate, Execute, Prepare
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st
from watersmeet.errors import error

Handler = Callable[[Session, Any], Result]

#: Runs a statement that contains others, or that waits: it holds no lock.
NestedHandler = Callable[[Session, Any, Nested], Result]

#: Most handlers are named by module and function, so that unused modules are not imported; features register functions.
HANDLERS: Final[dict[type[st.Statement], str | Handler]] = {
    AddConstraint: "constraints.add_constraint",
    DropConstraint: "constraints.drop_constraint",
    RenameConstraint: "constraints.rename_constraint",
    SetConstraints: "constraints.set_constraints",
    CopyIn: "copying.refuse_stream",
    CopyOut: "copying.refuse_stream",
    CopyFrom: "copying.copy_from",
    CopyTo: "copying.copy_to",
    Deallocate: "preparing.deallocate",
    Prepare: "preparing.prepare_statement",
    df.CreateIndex: "constraints.create_index",
    df.CreateMaterializedView: "views.create_materialized_view",
    df.AddColumn: "constraints.add_column",
    df.AlterColumn: "altercolumns.alter_column",
    df.AlterConnector: "altering.alter_connector",
    df.AlterFormat: "altering.refresh_schema",
    df.AlterSink: "sinks.alter_sink",
    df.AlterQuery: "altering.alter_query",
    df.AlterWithoutEffect: "altering.alter",
    df.DropColumn: "altering.alter",
    df.RedefineView: "redefining.redefine_view",
    df.RefreshSchema: "altering.refresh_schema",
    df.AlterPump: "pumps.alter_pump",
    df.CreateMergingPump: "pumps.create_pump",
    df.CreatePump: "pumps.create_pump",
    df.CreateProcessor: "processors.create_processor",
    df.CreateSchema: "schemas.create_schema",
    df.CreateSink: "sinks.create_sink",
    df.CreateSource: "tables.create_source",
    df.CreateStream: "tables.create_stream",
    df.CreateTable: "tables.create_table",
    df.CreateTopic: "topics.create_topic",
    df.CreateView: "views.create_view",
    st.Delete: "dml.delete",
    st.Describe: "show.describe",
    df.Drop: "altering.drop",
    df.DropSchema: "schemas.drop_schema",
    st.Exists: "show.exists",
    st.Explain: "explain.explain_statement",
    ExplainAnalyze: "analyzing.explain_analyze",
    st.Insert: "dml.insert",
    st.KillQuery: "running.kill_query",
    df.RenameColumn: "altering.alter",
    df.RenameRelation: "altering.alter",
    df.RenameSchema: "schemas.rename_schema",
    df.SetSchema: "altering.alter",
    df.SwapNames: "altering.alter",
    df.ResetStream: "pumps.reset_stream",
    SetViewOption: "views.set_option",
    LimitSink: "sinks.limit_sink",
    st.CancelJobs: "views.cancel_jobs",
    df.Merge: "dml.merge",
    st.MergeInto: "merging.merge_into",
    st.Recover: "running.recover_query",
    st.Select: "select.select",
    st.Show: "show.show",
    df.StartSink: "sinks.start_sink",
    df.TruncateStream: "pumps.truncate_stream",
    st.StartProcessor: "processors.start_processor",
    st.StopProcessor: "processors.stop_processor",
    st.Subscribe: "running.subscribe",
    st.Unsubscribe: "running.unsubscribe",
    st.Update: "dml.update",
    st.WithChanges: "merging.with_changes",
}

#: Handlers of statements that contain others. They run these with their last argument.
NESTING: Final[dict[type[st.Statement], str | NestedHandler]] = {Execute: "preparing.execute"}

#: Statements of plug-ins, with the module and function that run them. Without its plug-in a statement raises an error.
PLUG_INS: Final[dict[type[st.Statement], str]] = {ExplainRow: "watersmeet.lineage.explaining.explain_row"}

#: The first words of the statements that each feature reads, as in `readers.plug_in`. Its module is imported with the
#: first of them.
FEATURES: Final = {
    "captured": "RESET SOURCE",
    "cursors": "DECLARE, FETCH, MOVE, CLOSE",
    "databasesettings": "ALTER DATABASE, SHOW COMMITS, ALTER SYSTEM, COMMENT ON (comment)",
    "dictionaries": "CREATE DICTIONARY (dictionary)",
    "external": (
        "CREATE EXTERNAL TABLE (external table), CREATE EXTERNAL STREAM (external stream), CREATE STREAM "
        "(external stream)"
    ),
    "foreign": "CREATE SERVER (server), CREATE FOREIGN STREAM (foreign stream), CREATE FOREIGN TABLE (foreign table)",
    "forks": "DIFF, SHOW DIFF, REPLAY, PROMOTE, CREATE FORK, DROP FORK, SHOW FORKS",
    "grants": "GRANT, ALTER DEFAULT PRIVILEGES, REVOKE",
    "lakedatabases": "CREATE DATABASE (database)",
    "randomstreams": "CREATE RANDOM STREAM (random stream)",
    "roles": (
        "CREATE ROLE, CREATE USER, CREATE GROUP, ALTER ROLE, ALTER USER, ALTER GROUP, DROP ROLE, DROP USER, "
        "DROP GROUP, SET ROLE, SET SESSION ROLE, SET LOCAL ROLE, RESET ROLE"
    ),
    "sequences": "CREATE SEQUENCE (sequence), ALTER SEQUENCE (sequence)",
    "settings": (
        "SET, RESET, BEGIN, START, COMMIT, END, FLUSH, WAIT, SAVEPOINT, RELEASE, ROLLBACK, ABORT, TRUNCATE, "
        "LOCK, DISCARD"
    ),
    "sharedoptions": (
        "CREATE SECRET (secret), ALTER SECRET (secret), DROP SECRET (secret), CREATE CONNECTION (connection), "
        "CREATE NAMED COLLECTION (named collection), CREATE FORMAT SCHEMA (format schema)"
    ),
    "sqlfunctions": (
        "DROP FUNCTION (function), DROP AGGREGATE (function), GRANT USAGE ON LANGUAGE, REVOKE USAGE ON "
        "LANGUAGE, DO (type)"
    ),
    "subscriptions": (
        "SUBSCRIBE, CREATE SUBSCRIPTION (subscription), ALTER SUBSCRIPTION (subscription), LISTEN, UNLISTEN, NOTIFY"
    ),
    "types": (
        "CREATE TYPE (type), ALTER TYPE (type), CREATE CAST (type), DROP CAST (type), CREATE DOMAIN (domain), "
        "ALTER DOMAIN (domain)"
    ),
    "verifying": "VERIFY, SHOW VERIFICATIONS",
    "viewrefresh": "REFRESH",
}

plug_in("watersmeet.session.features", FEATURES)

#: The functions that bind the views that statements create.
_BINDERS: Final[dict[type[st.Statement], str]] = {
    df.CreateMaterializedView: "views.bind_view",
    df.CreateProcessor: "processors.bind_processor",
    df.CreatePump: "views.bind_view",
}


def handles(kind: type[st.Statement]) -> Callable[[Handler], Handler]:
    """Registers the function that runs statements of a type."""

    def register(handler: Handler) -> Handler:
        assert kind not in HANDLERS, f"two handlers of {kind.__name__}"
        HANDLERS[kind] = handler
        return handler

    return register


def handles_nested(kind: type[st.Statement]) -> Callable[[NestedHandler], NestedHandler]:
    """Like `handles`, for statements that contain others."""

    def register(handler: NestedHandler) -> NestedHandler:
        NESTING[kind] = handler
        return handler

    return register


def nested_handler_of(kind: type[st.Statement]) -> NestedHandler:
    """The function that runs statements of a type in `NESTING`."""
    found = NESTING[kind]
    return function_named(found) if isinstance(found, str) else found


def handler_of(kind: type[st.Statement]) -> Handler | None:
    """The function that runs statements of a type; None if no function does.

    Raises LIBRARY_MISSING for a statement of a plug-in that is not installed.
    """
    if kind in PLUG_INS:
        return _plugged_in(*PLUG_INS[kind].rsplit(".", 1))
    if kind not in HANDLERS:
        load_features()  # some features run statements that other modules read
    found = HANDLERS.get(kind)
    return function_named(found) if isinstance(found, str) else found


def _plugged_in(module: str, function: str) -> Handler:
    package = module.rpartition(".")[0]
    try:
        found: Handler = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as cause:
        if cause.name not in (package, module):
            raise
        raise error(
            "LIBRARY_MISSING",
            f"the statement needs the package {package}, which is not installed",
            hint="Watersmeet runs without this package; a complete installation contains it.",
        ) from cause
    return found


def bind(session: Session, statement: df.Create) -> Bound:
    """The view that a statement would create, for EXPLAIN."""
    bound: Bound = function_named(_BINDERS[type(statement)])(session, statement)
    return bound


def insert_many(session: Session, text: str, rows: Sequence[Sequence[Any]]) -> Result | None:
    """One INSERT for many rows of parameters. Returns None, without inserting, if each row needs its own INSERT."""
    done: Result | None = function_named("copying.insert_many")(session, text, rows)
    return done


def function_named(name: str) -> Callable[..., Any]:
    """A function by module and name, of `statements` unless the name begins with another folder. The module is imported
    when the function is first needed.
    """
    module, _, function = name.rpartition(".")
    package = "watersmeet.session" if "." in module else "watersmeet.session.statements"
    found: Callable[..., Any] = getattr(importlib.import_module(f"{package}.{module}"), function)
    return found
