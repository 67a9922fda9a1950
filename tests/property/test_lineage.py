"""EXPLAIN ROW and EXPLAIN MISSING ROW against plain Python: `lineage_plans`."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import watersmeet
from tests.property.lineage_plans import Case, Maker, Unclear, ends_shown, meets, rows_read, rows_shown, together
from tests.thorough import mostly_slow
from watersmeet import Connection

#: Rows that are asked about in a case, and rows that are not there.
_ROWS, _MISSING = 6, 6


def condition(values: dict[int, Any]) -> str:
    return " AND ".join(f"c{i} IS NULL" if v is None else f"c{i} = {v}" for i, v in values.items())


def check_origins(
    connection: Connection,
    name: str,
    wanted: Sequence[tuple[tuple[Any, ...], Any]],
    past: str = "",
    *,
    others: Sequence[Sequence[tuple[tuple[Any, ...], Any]]] = (),
    said: str | None = None,
    read: Callable[[str, dict[str, Any]], Any] = lambda name, row: (name, tuple(row.values())),
) -> None:
    """A view has just these rows, each with the set of the rows of tables that it comes from. past: as of when, if not
    now. others: what is as right as `wanted`: the same rows, from other rows. said: what a failure says beside.
    read: a row of a table, as it is in `wanted`.
    """
    rows = [tuple(r) for r in connection.execute(f"SELECT * FROM {name} {past}").fetchall()]
    assert Counter(rows) == Counter(v for v, _ in wanted), said or name
    for values in dict.fromkeys(rows):
        where = condition(dict(enumerate(values)))
        lines = connection.execute(f"EXPLAIN ROW SELECT * FROM {name} {past} WHERE {where}").fetchall()
        found = {read(table, row) for table, row in rows_read(lines, "table")}
        right = [set().union(*(lineage for v, lineage in one if v == values)) for one in (wanted, *others)]
        assert found in right, (said or name, values, lines, found, right)


def made(connection: Connection, case: Case) -> None:
    for name, rows in case.tables.items():
        connection.execute(f"CREATE TABLE {name} (rid INT PRIMARY KEY, k INT, x INT)")
        values = ", ".join(f"({', '.join('NULL' if v is None else str(v) for v in row)})" for row in rows)
        connection.execute(f"INSERT INTO {name} VALUES {values}")
    for view in case.views:
        connection.execute(f"CREATE MATERIALIZED VIEW {view.name} AS {view.plan.sql()}")
    connection.flush()


def check_rows(connection: Connection, case: Case, chosen: random.Random) -> None:
    view = case.last
    expected = view.rows(case.tables)
    rows = connection.execute(f"SELECT * FROM {view.name}").fetchall()
    assert Counter(tuple(r) for r in rows) == Counter(v for v, _ in expected), view.plan.sql()
    different = sorted(set(expected), key=repr)
    for values, lineage in chosen.sample(different, min(_ROWS, len(different))):
        where = condition(dict(enumerate(values)))
        lines = connection.execute(f"EXPLAIN ROW (SELECT * FROM {view.name} WHERE {where})").fetchall()
        assert rows_shown(lines) == lineage, (view.plan.sql(), values, lines)


#: Subqueries in the place of a value, with the column of their table that finds their rows.
VALUES = {
    "(SELECT max(x) FROM {t} s WHERE s.k = v.c{c})": 1,
    "(SELECT x FROM {t} s WHERE s.rid = v.c{c})": 0,
    "ARRAY(SELECT x FROM {t} s WHERE s.k = v.c{c} ORDER BY rid DESC)": 1,
    "(SELECT x FROM {t} s WHERE s.k = v.c{c} AND x = (SELECT max(x) FROM {t} u WHERE u.k = v.c{c}) LIMIT 1)": 1,
}


def check_values(connection: Connection, case: Case, chosen: random.Random) -> None:
    """A row with a subquery in the place of a value comes from the row, and from the rows that the value comes from."""
    view, (query, column) = case.last, chosen.choice(list(VALUES.items()))
    table, place = chosen.choice(list(case.tables)), chosen.randrange(view.columns)
    value = query.format(t=table, c=place)
    different = sorted(set(view.rows(case.tables)), key=repr)
    for values, lineage in chosen.sample(different, min(_ROWS, len(different))):
        found = [r for r in case.tables[table] if r[column] is not None and r[column] == values[place]]
        sql = f"SELECT v.*, {value} AS m FROM {view.name} v WHERE {condition(dict(enumerate(values)))}"
        lines = connection.execute(f"EXPLAIN ROW {sql}").fetchall()
        counting = {(table, r[0]) for r in found if "LIMIT 1" not in query or any(o[2] is not None for o in found)}
        assert rows_shown(lines) == lineage | counting, (view.plan.sql(), sql, lines)


def check_missing(connection: Connection, case: Case, chosen: random.Random) -> None:
    view = case.last
    rows = view.rows(case.tables)
    for _ in range(_MISSING):
        columns = chosen.sample(range(view.columns), chosen.choice([1, 1, 2]))
        wanted = {i: chosen.choice([1, 2, 3, 4, 5, 9]) for i in columns}
        lines = connection.execute(f"EXPLAIN MISSING ROW {view.name} WHERE {condition(wanted)}").fetchall()
        there = [r for r in rows if meets(r[0], wanted)]
        if there:
            assert rows_shown(lines) == together(there)
            continue
        with contextlib.suppress(Unclear):
            assert list(ends_shown(lines)) == view.ends(case.tables, wanted), (view.plan.sql(), wanted, lines)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 2, 8))
def test_rows_and_missing_rows(seed: int) -> None:
    case = Maker(seed).case()
    chosen = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        made(connection, case)
        check_rows(connection, case, chosen)
        check_values(connection, case, chosen)
        check_missing(connection, case, chosen)
