"""The trees of SQLstream's joins by clocks: watermarks, what is kept, what rewrites may do with pairs that make no
partner.
"""

from __future__ import annotations

import pytest

from watersmeet.algebra.nodes import Join, TimeFilter
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.trees import walk
from watersmeet.algebra.watermarks import of_join, watermarks
from watersmeet.binder import bind_query
from watersmeet.catalog import Catalog, EventTime, Table
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import read_script
from watersmeet.values.types import Field, SqlType
from watersmeet.values.watermarks import Term, both, shifted

A, B, C = ((Term(f"t{i}"),) for i in (1, 2, 3))
SECOND = 1_000_000


def stream(number, name):
    columns = (Field("ROWTIME", SqlType("timestamp"), nullable=False), Field("K", SqlType("integer")))
    return Table(
        f"t{number}",
        name,
        columns,
        append_only=True,
        event_time=EventTime("ROWTIME", 0, ordered=True),
        dialect="sqlstream",
    )


CATALOG = Catalog(1, 9, {r.id: r for r in (stream(1, "A"), stream(2, "B"), stream(3, "C"))})


def window(seconds):
    return f"OVER (RANGE INTERVAL '{seconds}' SECOND PRECEDING)"


def bound(query):
    statement = read_script(query, language_named("sqlstream"))[0]
    return bind_query(statement.query, CATALOG, query, "sqlstream")


def joins(query):
    return [n for n in walk(rewrite(bound(query).tree)) if isinstance(n, Join)]


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
def test_the_clock_of_a_join_is_the_lower_one_and_the_watermark_of_its_rowtime(kind):
    query = bound(f"SELECT STREAM a.k FROM a {window(60)} {kind} b {window(10)} ON a.k = b.k")
    marks = watermarks(rewrite(query.tree))
    assert (query.rowtime, query.hidden) == ("ROWTIME", True)
    assert {c.name: marks.get(c.id) for c in query.tree.columns} == {"ROWTIME": both(A, B), "K": None}
    chain = bound(
        f"SELECT STREAM ROWTIME FROM a {window(60)} {kind} b {window(10)} ON a.k = b.k {kind} c {window(5)} "
        f"ON b.k = c.k"
    )
    marks = watermarks(rewrite(chain.tree))
    assert [marks[c.id] for c in chain.tree.columns if c.name == "ROWTIME"] == [both(A, B, C)]


def test_what_is_kept_of_the_sides():
    """Windows of 60 and 10 seconds: -60 <= a - b <= 10. A row that is alone is decided by what came at its own time."""
    kept = {}
    for kind in ("inner", "left", "right", "full"):
        (join,) = joins(
            f"SELECT STREAM a.k, b.k AS j FROM a {window(60)} {kind.upper()} JOIN b {window(10)} ON a.k = b.k"
        )
        assert join.kind == kind
        kept[kind] = [side.bound for side in of_join(join)]
    left, right = shifted(B, -60 * SECOND), shifted(A, -10 * SECOND)
    assert kept == {
        "inner": [left, right],
        "left": [left, both(right, shifted(B, -10 * SECOND))],
        "right": [both(left, shifted(A, -60 * SECOND)), right],
        "full": [both(left, shifted(A, -60 * SECOND)), both(right, shifted(B, -10 * SECOND))],
    }


@pytest.mark.parametrize(
    ("windows", "kind", "partners"),
    [
        ((60, 10), "LEFT", True),
        ((60, 10), "RIGHT", True),
        ((0, 10), "LEFT", False),
        ((0, 10), "RIGHT", True),
        ((60, 0), "LEFT", True),
        ((60, 0), "RIGHT", False),
        ((60, 0), "FULL", True),
        ((0, 0), "FULL", False),
        ((60, 10), "INNER", False),
    ],
)
def test_pairs_that_make_no_partner_are_there_only_where_a_row_has_later_ones(windows, kind, partners):
    (join,) = joins(f"SELECT STREAM a.k FROM a {window(windows[0])} {kind} JOIN b {window(windows[1])} ON a.k = b.k")
    assert (join.partners is not None) == partners


def test_a_condition_that_rejects_rows_without_partner_makes_an_inner_join():
    (join,) = joins(f"SELECT STREAM a.k FROM a {window(60)} LEFT JOIN b {window(10)} ON a.k = b.k WHERE b.k > 3")
    assert (join.kind, join.partners) == ("inner", None)
    (join,) = joins(f"SELECT STREAM a.k FROM a {window(60)} LEFT JOIN b {window(10)} ON a.k = b.k WHERE b.k IS NULL")
    assert join.kind == "left", "rows with later partners are among those that come alone"


def test_rows_wait_in_one_time_filter_for_each_join():
    tree = rewrite(bound(f"SELECT STREAM a.k FROM a {window(60)} FULL JOIN b {window(10)} ON a.k = b.k").tree)
    found = [n for n in walk(tree) if isinstance(n, TimeFilter)]
    assert [(n.comparison, n.final, n.bound) for n in found] == [("<=", True, both(A, B))]
