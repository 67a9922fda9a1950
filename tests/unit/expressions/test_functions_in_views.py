"""Each function of a vendor's documentation has the same value in a view as in a SELECT (the law)."""

from __future__ import annotations

import pytest
from scripts.dialectcoverage import Entry, Topic, topics

import watersmeet
from watersmeet.session.connections.connection import Connection

#: Entries over several rows, whose SELECT is not that of a view.
_OTHER = ("DISTINCT", "array_join", "ORDER BY", "JOIN", "rand", "uuid", "now", "today", "LIMIT")
#: Views refuse functions whose value depends on the session.
_OF_SESSION = ("database()",)


def _select(entry: Entry) -> str | None:
    """The text of an entry without SELECT; None for other statements."""
    if entry.refused or entry.result is None or entry.kind not in ("function", "aggregate"):
        return None
    if entry.expression:
        return None if any(w in entry.expression for w in _OF_SESSION) else f"{entry.expression} AS x"
    words = entry.sql.removeprefix("SELECT ")
    return None if words == entry.sql or any(w.lower() in words.lower() for w in _OTHER) else words


#: The topics whose functions differ in how they are bound; the others are slow tests.
_QUICK = ("functions-arrays", "aggregates")
TOPICS = [
    pytest.param(t, id=t.name, marks=() if t.name in _QUICK else pytest.mark.slow)
    for t in topics()
    if t.system == "timeplus" and (t.name.startswith("functions-") or t.name == "aggregates")
]


@pytest.mark.parametrize("topic", TOPICS)
def test_views_have_the_values_of_queries(topic: Topic) -> None:
    with watersmeet.connect(dialect="timeplus", runtime="inprocess") as connection:
        connection.show_own_writes()
        connection.execute("CREATE STREAM one (id int)")
        selects = [s for s in map(_select, topic.entries) if s is not None]
        assert selects
        plain = [s for s in selects if " FROM " not in s]
        over_rows = [s.removesuffix(" FROM table(rows)") for s in selects if s.endswith(" FROM table(rows)")]
        connection.execute(topic.given.split("INSERT")[0])
        found = {"one": _views("one", plain, connection), "rows": _views("rows", over_rows, connection)}
        connection.execute("INSERT INTO one (id) VALUES (1);" + topic.given[len(topic.given.split("INSERT")[0]) :])
        for source, views in found.items():
            for name, items in views.items():
                (expected,) = connection.execute(f"SELECT {items} FROM table({source})").fetchall()
                assert connection.execute(f"SELECT * FROM table({name})").fetchall() == [expected], items
        assert connection.execute("SHOW ERRORS").fetchall() == []


def _views(source: str, items: list[str], connection: Connection) -> dict[str, str]:
    """Creates views over a stream, of twenty columns each; returns their columns by name."""
    found = {}
    for begin in range(0, len(items), 20):
        named = ", ".join(f"{e.removesuffix(' AS x')} AS c{i}" for i, e in enumerate(items[begin : begin + 20]))
        name = f"v_{source}_{begin}"
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT {named} FROM {source}")
        found[name] = named
    return found
