"""The sources of one query: copies of the sources that it names, which are read from the start of the query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from watersmeet.algebra.nodes import Reopened
from watersmeet.algebra.trees import walk
from watersmeet.catalog import QuerySource, Source, turned_into
from watersmeet.connectors import registry as connectors
from watersmeet.database.filling import Bound
from watersmeet.database.reading import batch_query, fetch, runs_on
from watersmeet.database.rebuild import by_source, moved, reading, reopened_scans, scan_of
from watersmeet.database.sessions.context import Session
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.errors import error
from watersmeet.system.process import lazy_import

if TYPE_CHECKING:
    from watersmeet.connectors import foreignstreams
    from watersmeet.connectors.kafka import source as kafkasource
else:
    foreignstreams = lazy_import("watersmeet.connectors.foreignstreams")
    kafkasource = lazy_import("watersmeet.connectors.kafka.source")


def with_own_sources(session: Session, bound: Bound) -> tuple[Bound, set[str]]:
    """The view with its own copies of the sources that each query reads by itself, and their ids. The copies are added
    to the catalog, and are read from the start of the query.
    """
    scans = reopened_scans(bound.tree)
    if not scans:
        return bound, set()
    relation, tree = bound.relation, bound.tree
    read = tree.ids.union(*[s.columns for n in walk(tree) for s in n.scalars])
    number = session.catalog.next_number
    made = []
    for place, scan in enumerate(scans, 1):  # the view itself has the first number
        made.append(_own_source(session, scan, relation.id, f"{QuerySource.family[0]}{number + place}", read))
    for source in made:
        session.put(source)
    ids = by_source(made)
    marks = {column: moved(mark, ids) for column, mark in relation.watermarks.items()}
    depends_on = (*relation.depends_on, *(source.id for source in made))
    changed = replace(
        bound, tree=reading(tree, made), relation=replace(relation, watermarks=marks, depends_on=depends_on)
    )
    return changed, {source.id for source in made}


def _own_source(session: Session, node: Reopened, owner: str, source_id: str, read: frozenset[str]) -> QuerySource:
    """The copy of a source for a query. read: the ids of the columns that the query reads."""
    scan = scan_of(node)
    relation = session.catalog.relations[scan.relation_id]
    assert isinstance(relation, Source)
    unread = {c.name for c in scan.outputs if c.name in relation.unlisted and c.id not in read}
    source = turned_into(
        QuerySource,
        relation,
        id=source_id,
        hidden=True,
        owner=owner,
        of=relation.id,
        start=node.start,
        shards=node.shards,
        strict=node.strict,
        reopened=False,
        columns=tuple(c for c in relation.columns if c.name not in unread),
        message_parts={c: p for c, p in relation.message_parts.items() if c not in unread},
        connector=kafkasource.starting_from(
            begins_now(session, relation.connector, relation.options_query), node.start, node.shards
        )
        | ({"on_error": "stop"} if node.strict else {}),
    )
    return connectors.check_connector(source)


def queried_options(session: Session, text: str) -> dict[str, str]:
    """The options that the query `text` returns now: the non-NULL columns of its row, by name. Empty without a row.

    Raises CONNECTOR_OPTION for several rows; FEATURE_NOT_SUPPORTED for a query that runs until it is stopped; errors of
    the query.
    """
    language = language_named(session.dialect)
    tree = read_tree(tokenize(text, language), text, language.grammar)
    if runs_on(session, tree):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"option {foreignstreams.OPTIONS_QUERY} with a query that runs until it is stopped",
            sql=text,
        )
    query = batch_query(session, tree, text)
    rows = fetch(session, query, newest=True)
    if rows.num_rows > 1:
        raise error(
            "CONNECTOR_OPTION",
            f"option {foreignstreams.OPTIONS_QUERY} has {rows.num_rows} rows, and one is needed",
            hint="Use WHERE, LIMIT 1 or an aggregate.",
        )
    values = rows.to_pylist()[0].values() if rows.num_rows else ()
    return {c.name: str(value) for c, value in zip(query.columns, values, strict=False) if value is not None}


def begins_now(session: Session, connector: Mapping[str, str], text: str) -> dict[str, str]:
    """The connector options of a topic for a query that starts reading it now.

    text: the value of OPTIONS_QUERY; empty for none. Raises CONNECTOR_OPTION; errors of the query.
    """
    found = foreignstreams.starting_options(queried_options(session, text)) if text else {}
    return kafkasource.restarted(connector, found) if found else dict(connector)
