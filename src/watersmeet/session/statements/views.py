"""CREATE VIEW, CREATE MATERIALIZED VIEW."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.binder import bind_query
from watersmeet.catalog import MaterializedView, View
from watersmeet.database.definitions import (
    add,
    check_columns,
    check_view,
    is_same,
    may_create,
    named_columns,
    new_relation,
    schema_for,
)
from watersmeet.database.reading import bounded, readable
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.tree.definitions import CreateMaterializedView, CreateView
from watersmeet.dialects.tree.queries import is_marked
from watersmeet.errors import NotSupportedError
from watersmeet.maintenance.views import bind_view, make
from watersmeet.session.statements.targets import make_delivered, target_of
from watersmeet.values.types import Schema


def create_view(session: Session, statement: CreateView) -> Result:
    """CREATE VIEW: stored as its text, and bound once to check it.

    It is valid if a batch query or a materialized view can read it: ASOF and look-up joins are for the latter only.
    """
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE VIEW")
    continuous = language_named(session.dialect).semantics.continuous
    if continuous == "streams" or (continuous == "marked" and is_marked(statement.query)):
        columns, depends_on, functions = _streamed(session, statement)
    else:
        try:
            query = bounded(session, statement.query, statement.text)
            columns, depends_on, functions = named_columns(query.columns, statement), query.named, query.functions
        except NotSupportedError as refused:
            try:
                columns, depends_on, functions = _streamed(session, statement)
            except NotSupportedError:
                raise refused from None
    check_columns(columns, statement)
    relation = new_relation(session, statement, View, columns, depends_on=depends_on, functions=functions)
    existing = session.catalog.by_name(relation.name, relation.schema)
    if existing is not None:
        check_view(session, statement, existing, relation)
        relation = replace(relation, id=existing.id)
    add(session, relation)
    return Result("CREATE VIEW")


def _streamed(session: Session, statement: CreateView) -> tuple[Schema, tuple[str, ...], tuple[str, ...]]:
    """(columns, relations, functions) of a view as a materialized view reads it."""
    found = bind_query(
        statement.query,
        readable(session.catalog),
        statement.text,
        session.dialect,
        column_names=statement.column_names,
    )
    return found.columns, found.depends_on, found.functions


def create_materialized_view(session: Session, statement: CreateMaterializedView) -> Result:
    """Binds, compiles and fills. When this returns, the view shows what its inputs have."""
    if _is_there(session, statement) or not may_create(
        session, statement, statement.name, statement.name_span, statement.if_not_exists
    ):
        return Result("CREATE MATERIALIZED VIEW")
    bound = bind_view(session, statement)
    stream = target_of(session, statement, bound.relation.columns, bound.relation.depends_on)
    if stream is None:
        make(session, bound)
        return Result("CREATE MATERIALIZED VIEW")
    make_delivered(session, replace(bound, relation=replace(bound.relation, feeds=stream.id)), stream)
    return Result("CREATE MATERIALIZED VIEW")


def _is_there(session: Session, statement: CreateMaterializedView) -> bool:
    """Whether CREATE OR REPLACE would only create the existing view again, whose content depends on its query alone."""
    if not statement.replaces or session.semantics.continuous != "never":
        return False
    existing = session.catalog.by_name(statement.name, schema_for(session, statement))
    if not isinstance(existing, MaterializedView) or existing.sql != statement.sql:
        return False
    if not is_same(existing, bind_view(session, statement).relation):
        return False
    session.notice(f"{existing.title} already has this definition")
    return True
