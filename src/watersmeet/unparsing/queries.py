"""Bounded queries: from a parsed query to SQL of DuckDB over the current content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlglot import exp

from watersmeet.algebra.bounded import PastScan, TopicScan
from watersmeet.binder.bounded import bind_bounded
from watersmeet.catalog import Catalog, Relation
from watersmeet.connectors.base.readers import Narrowed
from watersmeet.dialectnames import DEFAULT_DIALECT
from watersmeet.dialects.tree.queries import depth_checked
from watersmeet.types import Field, Origin, Schema
from watersmeet.unparsing.narrowing import looked_up, narrowed
from watersmeet.unparsing.relations import Writer
from watersmeet.unparsing.texts import quoted


@dataclass(frozen=True)
class QuerySql:
    """DuckDB SQL of a bounded query and what it gives.

    depends_on: ids of the relations whose content it reads. named: of those that the query itself names, views, too.
    functions: of the functions of SQL that it calls. system: names of the system relations that it reads. topics: those
    that it reads as they are now; their outputs are the columns that it reads, at least one. narrowed: what it needs of
    external tables. lookups: by which columns it looks up rows, as (relation id, column). past: what it reads as of
    earlier moments. origins: for each column, that of a relation that it names, if it is nothing else.
    """

    sql: str
    columns: Schema
    depends_on: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    topics: tuple[TopicScan, ...] = ()
    narrowed: tuple[Narrowed, ...] = ()
    lookups: tuple[tuple[str, str], ...] = ()
    past: tuple[PastScan, ...] = ()
    origins: tuple[Origin | None, ...] = ()


def to_duckdb(
    query: exp.Expression,
    catalog: Catalog,
    text: str,
    dialect: str = DEFAULT_DIALECT,
    *,
    relation_name: Callable[[Relation], str] = lambda r: r.shown,
    files: bool = True,
) -> QuerySql:
    """DuckDB SQL of a bounded query.

    text: the text that the places in `query` are in. relation_name: the DuckDB relation that holds the content of
    a table or materialized view; its columns are called as the relation's are. files: whether it may read files. The
    result's columns have the names (maybe repeated) and types of `columns`. Raises the errors of `bind_query`.
    """
    found = bind_bounded(query, catalog, text, dialect, files=files)
    columns = tuple(Field(o.column.name, o.column.type, o.column.nullable) for o in found.bound.outputs)
    with depth_checked(text):
        writer = Writer(lambda i: relation_name(catalog.relations[i]))
        sql = writer.query(found.bound.relation, [c.name for c in columns])
    topics = tuple(_read_in(sql, t) for t in found.topics)
    outside = narrowed(found.bound.relation, sql, catalog)
    lookups = looked_up(found.bound.relation, catalog)
    return QuerySql(
        sql,
        columns,
        found.read,
        found.named,
        found.functions,
        found.system,
        topics,
        outside,
        lookups,
        found.past,
        found.origins,
    )


def _read_in(sql: str, scan: TopicScan) -> TopicScan:
    """The scan with the columns that a query reads: those that it has beyond the list of all."""
    read = tuple(c for c in scan.outputs if sql.count(quoted(c.id)) > 1)
    return replace(scan, outputs=read or scan.outputs[:1])
