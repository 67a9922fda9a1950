"""Which function runs a statement."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from watersmeet.dialects.sqlstream.ddl import CreateForeignTable
from watersmeet.dialects.sqlstream.merging import CreateMergingPump, Merge
from watersmeet.dialects.statements import roles as rl
from watersmeet.dialects.statements.alter import LimitSink
from watersmeet.dialects.statements.captured import CreateCapturedTable, ResetSource
from watersmeet.dialects.statements.databases import AlterDatabase
from watersmeet.dialects.statements.dml import CopyFrom, CopyTo
from watersmeet.dialects.statements.explaining import ExplainAnalyze, ExplainRow
from watersmeet.dialects.statements.formatschemas import CreateFormatSchema
from watersmeet.dialects.statements.history import AlterSystem, ShowCommits
from watersmeet.dialects.statements.lakedatabases import CreateLakeDatabase
from watersmeet.dialects.statements.namedcollections import CreateNamedCollection
from watersmeet.dialects.statements.namedsubscriptions import AlterRetention, CreateSubscription
from watersmeet.dialects.statements.refresh import RefreshView
from watersmeet.dialects.statements.subscribing import SubscribeChanges
from watersmeet.dialects.timeplus.external import CreateDictionary
from watersmeet.dialects.tree import statements as st
from watersmeet.session.access.context import Session
from watersmeet.session.access.filling import Bound
from watersmeet.session.access.result import Result

Handler = Callable[[Session, Any], Result]

#: By module and function, so that modules that a session never runs are not imported.
HANDLERS: Final[dict[type[st.Statement], str]] = {
    st.Begin: "transactions.begin_statement",
    st.Commit: "transactions.commit_statement",
    AlterRetention: "namedsubscriptions.alter_retention",
    AlterSystem: "history.alter_system",
    CreateCapturedTable: "captured.create_table_from",
    ResetSource: "recapturing.reset_source",
    CopyFrom: "copying.copy_from",
    CopyTo: "copying.copy_to",
    st.CreateConnection: "connections.create_connection",
    CreateDictionary: "dictionaries.create_dictionary",
    st.CreateExternalStream: "external.create_external_stream",
    CreateFormatSchema: "formatschemas.create_format_schema",
    st.CreateExternalTable: "external.create_external_table",
    st.CreateForeignStream: "foreign.create_foreign_stream",
    CreateForeignTable: "foreigntables.create_foreign_table",
    st.CreateFunction: "sqlfunctions.create_function",
    st.CreateIndex: "tables.create_index",
    CreateLakeDatabase: "lakedatabases.create_lake_database",
    CreateNamedCollection: "namedcollections.create_named_collection",
    st.CreateMaterializedView: "views.create_materialized_view",
    st.AddColumn: "altering.alter",
    AlterDatabase: "databases.alter_database",
    st.AlterConnector: "connectors.alter_connector",
    st.AlterQuery: "connectors.alter_query",
    st.RefreshSchema: "connectors.refresh_schema",
    st.AlterPump: "pumps.alter_pump",
    CreateMergingPump: "pumps.create_pump",
    st.CreatePump: "pumps.create_pump",
    st.CreateProcessor: "processors.create_processor",
    st.CreateSchema: "schemaddl.create_schema",
    st.CreateSecret: "secrets.create_secret",
    st.CreateServer: "foreign.create_server",
    st.CreateSink: "sinks.create_sink",
    CreateSubscription: "namedsubscriptions.create_subscription",
    st.CreateSource: "tables.create_source",
    st.CreateStream: "streams.create_stream",
    st.CreateTable: "tables.create_table",
    st.CreateTopic: "topics.create_topic",
    st.CreateView: "views.create_view",
    st.Delete: "dml.delete",
    st.Describe: "show.describe",
    st.Drop: "drop.drop",
    st.DropFunction: "sqlfunctions.drop_function",
    st.DropSecret: "secrets.drop_secret",
    st.DropSchema: "schemaddl.drop_schema",
    ExplainRow: "lineage.explain_row",
    st.Explain: "explain.explain_statement",
    ExplainAnalyze: "analyzing.explain_analyze",
    st.Flush: "transactions.flush_statement",
    st.Insert: "dml.insert",
    st.KillQuery: "select.kill_query",
    st.RenameColumn: "altering.alter",
    st.RenameRelation: "altering.alter",
    LimitSink: "sinks.limit_sink",
    Merge: "dml.merge",
    rl.AlterRole: "roles.alter_role",
    rl.CreateRole: "roles.create_role",
    rl.DropRole: "roles.drop_role",
    rl.Grant: "roles.grant",
    rl.GrantRole: "roles.grant_role",
    rl.RenameRole: "roles.rename_role",
    rl.SetRole: "roles.set_role",
    RefreshView: "viewrefresh.refresh_view",
    st.Recover: "subscriptions.recover_query",
    st.Rollback: "transactions.rollback_statement",
    st.Select: "select.select",
    ShowCommits: "history.show_commits",
    st.SetVariable: "settings.set_variable",
    st.Show: "show.show",
    st.ShowVariable: "settings.show_variable",
    st.StartSink: "sinks.start_sink",
    st.StartProcessor: "processors.start_processor",
    st.StopProcessor: "processors.stop_processor",
    st.Subscribe: "subscriptions.subscribe",
    SubscribeChanges: "subscribe.subscribe",
    st.Unsubscribe: "subscriptions.unsubscribe",
    st.Update: "dml.update",
}

#: The functions that bind the views that statements create.
_BINDERS: Final[dict[type[st.Statement], str]] = {
    st.CreateMaterializedView: "views.bind_view",
    st.CreateProcessor: "processors.bind_processor",
    CreateMergingPump: "views.bind_view",
    st.CreatePump: "views.bind_view",
}

#: Statements that wait for views while other threads run statements. Only one of them runs at a time.
DEFINING: Final = (
    AlterDatabase,
    st.Alter,
    AlterRetention,
    AlterSystem,
    st.AlterPump,
    st.Create,
    st.CreateSchema,
    st.CreateSecret,
    st.Drop,
    st.DropFunction,
    st.DropSchema,
    st.DropSecret,
    st.KillQuery,
    LimitSink,
    RefreshView,
    ResetSource,
    st.Recover,
    st.StartSink,
    st.StartProcessor,
    st.StopProcessor,
    st.Subscribe,
    st.Unit,
    st.Unsubscribe,
)


def handler_of(kind: type[st.Statement]) -> Handler | None:
    """The function that runs statements of a type; None if there is none."""
    return function_named(HANDLERS[kind]) if kind in HANDLERS else None


def bind(session: Session, statement: st.Create) -> Bound:
    """The view that a statement would create, for EXPLAIN."""
    bound: Bound = function_named(_BINDERS[type(statement)])(session, statement)
    return bound


def insert_many(session: Session, text: str, rows: Sequence[Sequence[Any]]) -> Result | None:
    """One INSERT for many rows of parameters; None, with nothing done, if it has to run for each row."""
    done: Result | None = function_named("bulk.insert_many")(session, text, rows)
    return done


def function_named(name: str) -> Callable[..., Any]:
    """A function by module and name. The module is imported when the function is first needed."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"watersmeet.session.statements.{module}"), function)
    return found
