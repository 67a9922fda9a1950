"""Which function runs a statement."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from watersmeet.dialects import statements as st
from watersmeet.session.access.context import Session
from watersmeet.session.access.result import Result

Handler = Callable[[Session, Any], Result]

#: By module and function: what a session never runs is not imported.
HANDLERS: Final[dict[type[st.Statement], str]] = {
    st.Begin: "access.transactions.begin_statement",
    st.Commit: "access.transactions.commit_statement",
    st.CreateDictionary: "statements.external.create_dictionary",
    st.CreateExternalStream: "statements.external.create_external_stream",
    st.CreateExternalTable: "statements.external.create_external_table",
    st.CreateFunction: "statements.sqlfunctions.create_function",
    st.CreateIndex: "statements.ddl.create_index",
    st.CreateMaterializedView: "statements.materialize.create_materialized_view",
    st.AddColumn: "statements.altering.alter",
    st.AlterPump: "statements.pumps.alter_pump",
    st.CreatePump: "statements.pumps.create_pump",
    st.CreateProcessor: "statements.topics.create_processor",
    st.CreateSchema: "statements.schemaddl.create_schema",
    st.CreateSource: "statements.ddl.create_source",
    st.CreateStream: "statements.streams.create_stream",
    st.CreateTable: "statements.ddl.create_table",
    st.CreateTopic: "statements.topics.create_topic",
    st.CreateView: "statements.ddl.create_view",
    st.Delete: "statements.dml.delete",
    st.Describe: "statements.show.describe",
    st.Drop: "statements.ddl.drop",
    st.DropFunction: "statements.sqlfunctions.drop_function",
    st.DropSchema: "statements.schemaddl.drop_schema",
    st.Explain: "statements.explain.explain_statement",
    st.Flush: "access.transactions.flush_statement",
    st.Insert: "statements.dml.insert",
    st.KillQuery: "services.running.kill_query",
    st.RenameColumn: "statements.altering.alter",
    st.RenameRelation: "statements.altering.alter",
    st.Rollback: "access.transactions.rollback_statement",
    st.Select: "statements.select.select",
    st.SetVariable: "statements.settings.set_variable",
    st.Show: "statements.show.show",
    st.ShowVariable: "statements.settings.show_variable",
    st.StopProcessor: "statements.topics.stop_processor",
    st.Update: "statements.dml.update",
}

#: These wait for views, with other threads' statements going on; they exclude each other.
DEFINING: Final = (
    st.Alter,
    st.AlterPump,
    st.CreateDictionary,
    st.CreateExternalStream,
    st.CreateExternalTable,
    st.CreateFunction,
    st.CreateIndex,
    st.CreateMaterializedView,
    st.CreateProcessor,
    st.CreateSchema,
    st.CreateSource,
    st.CreateStream,
    st.CreateTable,
    st.CreateTopic,
    st.CreateView,
    st.Drop,
    st.DropFunction,
    st.DropSchema,
    st.KillQuery,
    st.StopProcessor,
    st.Unit,
)


def handler_of(kind: type[st.Statement]) -> Handler | None:
    """What runs statements of a type: imported when the first one comes. None if nothing does."""
    name = HANDLERS.get(kind)
    if name is None:
        return None
    module, _, function = name.rpartition(".")
    handler: Handler = getattr(importlib.import_module(f"watersmeet.session.{module}"), function)
    return handler
