"""EXPLAIN: the plan of a view, or of a bounded query."""

from __future__ import annotations

from typing import Any, Final

from watersmeet.binder import request_of
from watersmeet.dialects import parse
from watersmeet.dialects import statements as st
from watersmeet.planner import ExplainOptions, explain
from watersmeet.session.access.context import Session, denied, error_at
from watersmeet.session.access.filling import Bound
from watersmeet.session.access.planning import join_order, joins_many, shares
from watersmeet.session.access.reading import Bounded, bounded, reading, runs_on
from watersmeet.session.access.result import Result, lines_result
from watersmeet.session.services.refreshing import sent
from watersmeet.session.services.views import bind_running
from watersmeet.session.statements.registry import bind, handler_of

_TITLE: Final = "QUERY PLAN"

_DUCKDB_FORMATS: Final[dict[st.ExplainFormat, str]] = {"text": "text", "json": "json", "dot": "graphviz"}

#: Statements that EXPLAIN of a script really runs, so that later statements find what they name.
_MADE: Final = (st.Create, st.CreateSchema, st.Drop, st.DropFunction, st.DropSchema, st.SetVariable)


def explain_statement(session: Session, statement: st.Explain) -> Result:
    """EXPLAIN CREATE MATERIALIZED VIEW …, or of a SELECT. Creates nothing."""
    inner = statement.statement
    if isinstance(inner, st.Refused):
        raise inner.error
    options = ExplainOptions(
        statement.verbose, statement.level, statement.format, statement.trace, **_planning(session)
    )
    lines = _running_lines(session, inner, options)
    if lines is None and isinstance(inner, st.Select):
        lines = _batch_lines(session, inner, statement.format)
    if lines is None:
        raise error_at(
            statement,
            inner.span,
            "FEATURE_NOT_SUPPORTED",
            "EXPLAIN of this statement is not supported",
            hint="Use EXPLAIN CREATE MATERIALIZED VIEW … or EXPLAIN SELECT ….",
        )
    return lines_result("EXPLAIN", _TITLE, lines)


def _running_lines(session: Session, statement: st.Statement, options: ExplainOptions) -> list[str] | None:
    """The plan of something that follows its inputs: a view, a pump, a processor, a running query.

    None for anything else.
    """
    if isinstance(statement, (st.CreateMaterializedView, st.CreateProcessor)):
        return _lines(session, bind(session, statement), options)
    if isinstance(statement, (st.Select, st.Subscribe)) and runs_on(session, statement.query):
        request = request_of(statement.query, statement.text, session.dialect)
        return _lines(session, bind_running(session, request, statement, "query"), options)
    return None


def _lines(session: Session, bound: Bound, options: ExplainOptions) -> list[str]:
    database = session.database
    producers = {} if database.read_only else database.plans.producers
    return explain(bound.tree, bound.relation, session.catalog.as_stored, producers, database.buckets, options)


def _planning(session: Session) -> dict[str, Any]:
    return {
        "join_order": join_order(session.variables),
        "share": shares(session.variables),
        "multiway": joins_many(session.variables),
    }


def explain_script(session: Session, text: str) -> list[tuple[str, list[str]]]:
    """The name and plan of everything in a script that follows its inputs.

    Runs the script without its rows, queries and connectors.
    """
    session.replace_connectors = True
    plans: list[tuple[str, list[str]]] = []
    queries = 0
    parsed = [s for p in parse(text, session.dialect) for s in (p.statements if isinstance(p, st.Unit) else (p,))]
    for statement in parsed:
        inner = statement.statement if isinstance(statement, st.Explain) else statement
        if isinstance(inner, st.Refused):
            raise inner.error
        lines = _running_lines(session, inner, ExplainOptions(**_planning(session)))
        if lines is not None:
            queries += isinstance(inner, (st.Select, st.Subscribe))
            plans.append((inner.name if isinstance(inner, st.Create) else f"query {queries}", lines))
        if inner is statement and isinstance(inner, _MADE):
            handler = handler_of(type(inner))
            assert handler is not None
            handler(session, inner)
    return plans


def _batch_lines(session: Session, statement: st.Select, kind: st.ExplainFormat) -> list[str]:
    """The plan by which DuckDB reads the content, as DuckDB prints it."""
    query = bounded(session, statement.query, statement.text)
    if not session.catalog.knows(query.depends_on):
        raise denied("EXPLAIN of this query", statement.text, detail="It reads views of what is not granted to you.")
    with reading(session, query, newest=False) as connection:
        rows = connection.execute(f"EXPLAIN (FORMAT {_DUCKDB_FORMATS[kind]}) {query.sql}").fetchall()
    lines = [line for _, text in rows for line in text.strip("\n\t").split("\n")]
    return ["BatchQuery { engine: DuckDB }", *_asked(session, query), *lines] if kind == "text" else lines


def _asked(session: Session, query: Bounded) -> list[str]:
    """What servers of external tables are asked, unless what is stored is as new."""
    statements = [(session.catalog.relations[n.relation_id].shown, sent(session, n)) for n in query.narrowed]
    return [f'External {{ table: "{name}", sends: {text} }}' for name, text in statements if text is not None]
