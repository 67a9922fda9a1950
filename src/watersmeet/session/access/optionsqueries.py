"""OPTIONS_QUERY: a query whose row gives options of a foreign stream.

SQLstream, "CREATE FOREIGN STREAM".
"""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.connectors.kafka.source import restarted
from watersmeet.connectors.spellings.foreignstreams import OPTIONS_QUERY, starting_options
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.errors import error
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import bounded, fetch, runs_on


def queried_options(session: Session, text: str) -> dict[str, str]:
    """The options that the query `text` gives now: of its one row, by the names of its columns, those that are not
    NULL. None if it has no row.

    CONNECTOR_OPTION for several rows; FEATURE_NOT_SUPPORTED for a query that runs until it is stopped; errors of the
    query.
    """
    language = language_named(session.dialect)
    tree = read_tree(tokenize(text, language), text, language.grammar)
    if runs_on(session, tree):
        raise error(
            "FEATURE_NOT_SUPPORTED", f"option {OPTIONS_QUERY} with a query that runs until it is stopped", sql=text
        )
    query = bounded(session, tree, text)
    rows = fetch(session, query, newest=True)
    if rows.num_rows > 1:
        raise error(
            "CONNECTOR_OPTION",
            f"option {OPTIONS_QUERY} has {rows.num_rows} rows, and one is needed",
            hint="Use WHERE, LIMIT 1 or an aggregate.",
        )
    values = rows.to_pylist()[0].values() if rows.num_rows else ()
    return {c.name: str(value) for c, value in zip(query.columns, values, strict=False) if value is not None}


def begins_now(session: Session, connector: Mapping[str, str], text: str) -> dict[str, str]:
    """The options of the connector of a topic for a query that begins to read it now.

    text: of OPTIONS_QUERY; empty for none. CONNECTOR_OPTION; errors of the query.
    """
    found = starting_options(queried_options(session, text)) if text else {}
    return restarted(connector, found) if found else dict(connector)
