"""EXPLAIN: the plan of a view, or of a batch query."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from watersmeet.binder import request_of
from watersmeet.catalog import Index
from watersmeet.database.committing import new_transaction, rollback
from watersmeet.database.filling import Bound, join_order, joins_many, shares
from watersmeet.database.reading import BatchQuery, batch_query, reading, rows_read, runs_on
from watersmeet.database.sessions.context import Session, denied
from watersmeet.database.sessions.result import Result, lines_result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.explaining import TITLE
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.maintenance.refreshing import sent
from watersmeet.maintenance.views import bind_running
from watersmeet.planner import JSON_VERSION, ExplainOptions, PlanTree, explain
from watersmeet.session.features.sqlfunctions import DropFunction
from watersmeet.session.handlers import bind, handler_of
from watersmeet.session.statements.dml import planned_change
from watersmeet.session.statements.select import read_now
from watersmeet.session.statements.sinks import query_view

#: The name of a column in DuckDB's tables.
_COLUMN: Final = re.compile(r"\bc\d+\b")

_DUCKDB_FORMATS: Final[dict[st.ExplainFormat, str]] = {"text": "text", "json": "json", "dot": "graphviz"}

#: Statements that create relations without operators of their own, with the name of the relation in the plan.
_DEFINED: Final[dict[type[st.Statement], str]] = {
    df.CreateIndex: "Index",
    df.CreateSource: "Source",
    df.CreateTable: "Table",
}

#: Statements that EXPLAIN of a script runs, so that later statements find the objects that they name.
_MADE: Final = (df.Create, df.CreateSchema, df.Drop, DropFunction, df.DropSchema, st.SetVariable)


def explain_statement(session: Session, statement: st.Explain) -> Result:
    """EXPLAIN of queries, INSERT, UPDATE, DELETE and CREATE. Creates nothing; only with ANALYZE, a SELECT runs."""
    inner = statement.statement
    if isinstance(inner, st.Refused):
        raise inner.error
    if statement.analyze:
        assert isinstance(inner, st.Select)
        return lines_result("EXPLAIN", TITLE, _profile(session, inner, statement))
    options = ExplainOptions(
        statement.verbose, statement.level, statement.format, statement.trace, **_planning(session)
    )
    lines = _running_lines(session, inner, options)
    if isinstance(inner, df.CreateSink):
        made = _lines(session, bind(session, query_view(session, inner)), options)
        lines = [line.replace("StreamMaterialize", "StreamSink") for line in made]
    if lines is None:
        lines = _ending_lines(session, inner, statement.format)
    if lines is None and type(inner) in _DEFINED:
        lines = _defined_lines(session, inner, options)
    if lines is None:
        raise not_supported(
            "EXPLAIN of this statement",
            statement.text,
            inner.span,
            hint="EXPLAIN shows the plans of queries, of INSERT, UPDATE and DELETE, and of what CREATE would create.",
        )
    return lines_result("EXPLAIN", TITLE, lines)


def _ending_lines(session: Session, statement: st.Statement, kind: st.ExplainFormat) -> list[str] | None:
    """The plan of a query, or of a statement that stores the rows of a query once; None for others."""
    if isinstance(statement, st.Select):
        return _batch_lines(session, statement, batch_query(session, statement.query, statement.text), kind)
    title = "BatchInsert"
    if isinstance(statement, df.CreateTable) and statement.query is not None:
        table, query = statement.name, batch_query(session, statement.query, statement.text)
    elif isinstance(statement, (st.Insert, st.Update, st.Delete)):
        relation, query = planned_change(session, statement)
        table, title = relation.shown, f"Batch{type(statement).__name__}"
    elif isinstance(statement, df.CreateView):
        return _batch_lines(session, statement, batch_query(session, statement.query, statement.text), kind)
    else:
        return None
    lines = _batch_lines(session, statement, query, kind)
    return [f"{title} {{ table: {table} }}", *lines] if kind == "text" else lines


def _defined_lines(session: Session, statement: st.Statement, options: ExplainOptions) -> list[str]:
    """One line with the definition of a table, source or index: its operators are those of the views that read it.

    Creates it in a transaction of its own, without its connector, which is then rolled back.
    """
    session.require_no_transaction(f"EXPLAIN CREATE {_DEFINED[type(statement)].upper()}")
    own = replace(session, transaction=new_transaction(session), connectors="checked")
    try:
        handler = handler_of(type(statement))
        assert handler is not None
        handler(own, statement)
        assert isinstance(statement, df.Create)
        relation = own.relation(st.Name(statement.name, statement.name_span, schema=statement.schema), statement)
    finally:
        rollback(own)
    fields = {"name": relation.shown}
    if isinstance(relation, Index):
        table = session.catalog.relations[relation.depends_on[0]]
        fields |= {"table": table.shown, "key": _names(relation.index_columns), "include": _names(relation.included)}
    else:
        fields |= {"columns": _names(c.name for c in relation.columns), "primary_key": _names(relation.primary_key)}
        fields |= {"append_only": str(relation.append_only).lower()}
    if connector := getattr(statement, "options", {}).get("connector"):
        fields["connector"] = connector
    tree = PlanTree(_DEFINED[type(statement)], tuple(fields.items()))
    if options.format == "json":
        made = {"version": JSON_VERSION, "level": options.level, "plan": tree.to_json()}
        return json.dumps(made, indent=2, ensure_ascii=False).split("\n")
    return tree.lines()


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _running_lines(session: Session, statement: st.Statement, options: ExplainOptions) -> list[str] | None:
    """The plan of a statement whose result follows its inputs: a view, a pump, a processor, a running query.

    None for others.
    """
    if isinstance(statement, (df.CreateMaterializedView, df.CreateProcessor)):
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


def explain_script(session: Session, text: str, *, batch: bool = False) -> list[tuple[str, list[str]]]:
    """The name and plan of each view, pump, processor and running query in a script.

    Runs the script without its rows and queries. Options of connectors are checked, but no other system is contacted.
    In a database that is open for reading it creates nothing: relations that the script names must exist. batch: also
    return the plans of batch queries.
    """
    session.connectors = "checked"
    plans: list[tuple[str, list[str]]] = []
    queries = 0
    for statement in st.single(parse(text, session.dialect)):
        inner = statement.statement if isinstance(statement, st.Explain) else statement
        if isinstance(inner, st.Refused):
            raise inner.error
        lines = _running_lines(session, inner, ExplainOptions(**_planning(session)))
        if lines is None and batch and isinstance(inner, st.Select):
            lines = _ending_lines(session, inner, "text")
        if lines is not None:
            queries += isinstance(inner, (st.Select, st.Subscribe))
            plans.append((inner.name if isinstance(inner, df.Create) else f"query {queries}", lines))
        made = (st.SetVariable,) if session.database.read_only else _MADE
        if inner is statement and isinstance(inner, made):
            handler = handler_of(type(inner))
            assert handler is not None
            handler(session, inner)
    return plans


def _batch_lines(session: Session, statement: st.Statement, query: BatchQuery, kind: st.ExplainFormat) -> list[str]:
    """The plan by which DuckDB reads the content, as DuckDB prints it."""
    _check_known(session, query, statement)
    sql = f"EXPLAIN (FORMAT {_DUCKDB_FORMATS[kind]}) {query.sql}"
    lines = _printed(rows_read(session, lambda: reading(session, query, newest=False), sql, statement.text))
    if kind == "json":
        plan = json.loads("\n".join(lines))
        _name_scans(session, plan)
        lines = json.dumps(plan, indent=4, ensure_ascii=False).split("\n")
    return ["BatchQuery { engine: DuckDB }", *_asked(session, query), *lines] if kind == "text" else lines


def _name_scans(session: Session, plan: list[dict[str, Any]]) -> None:
    """The relations and columns that DuckDB's plan scans get their names in the catalog."""
    for node in plan:
        _name_scans(session, node["children"])
        info = node["extra_info"]
        relation = session.catalog.relations.get(str(info.get("Table", "")).rpartition(".")[2])
        if relation is None:
            continue
        names = {f"c{i}": c.name for i, c in enumerate(relation.columns)}
        info["Table"] = relation.shown
        info.update((field, _with_names(info[field], names)) for field in ("Projections", "Filters") if field in info)


def _with_names(text: str | list[str], names: Mapping[str, str]) -> str | list[str]:
    """DuckDB's texts, with the names of the columns."""
    if isinstance(text, list):
        return [_COLUMN.sub(lambda m: names.get(m[0], m[0]), t) for t in text]
    return _COLUMN.sub(lambda m: names.get(m[0], m[0]), text)


def _profile(session: Session, statement: st.Select, asked: st.Explain) -> list[str]:
    """Runs a query. Returns its profile as DuckDB prints it."""
    if runs_on(session, statement.query):
        raise not_supported(
            "EXPLAIN ANALYZE of a query that runs until it is stopped",
            asked.text,
            statement.span,
            hint="EXPLAIN ANALYZE MATERIALIZED VIEW … shows what the operators of a view have done.",
        )
    query = batch_query(session, statement.query, statement.text)
    _check_known(session, query, statement)
    sql = f"EXPLAIN (ANALYZE, FORMAT {_DUCKDB_FORMATS[asked.format]}) {query.sql}"
    lines = _printed(rows_read(session, lambda: read_now(session, query), sql, statement.text))
    begin = next((n for n, line in enumerate(lines) if line.startswith("EXPLAIN (ANALYZE")), -1)
    return lines[begin + 1 :]  # the lines above are a title and the SQL text


def _check_known(session: Session, query: BatchQuery, statement: st.Statement) -> None:
    if not session.catalog.knows(query.depends_on):
        raise denied(
            "EXPLAIN of this query", statement.text, detail="It reads views of relations that are not granted to you."
        )


def _printed(plan: pa.Table) -> list[str]:
    return [line for text in plan.column(1).to_pylist() for line in text.strip("\n\t").split("\n")]


def _asked(session: Session, query: BatchQuery) -> list[str]:
    """A line for each external table that the query reads from its server, with the statement sent to the server."""
    statements = [(session.catalog.relations[n.relation_id].shown, sent(session, n)) for n in query.pushdowns]
    return [f'External {{ table: "{name}", sends: {text} }}' for name, text in statements if text is not None]
