"""EXPLAIN ROW and EXPLAIN MISSING ROW of recursive queries, against their rounds in plain Python: a row comes from what
gave it in its round, and so on down to the first one. Of UNION, only the round in which it came first counts.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from tests.property.lineage_plans import parts, rows_read, rows_shown
from tests.property.test_lineage import condition
from tests.thorough import mostly_slow

FIRST = "SELECT k AS c0, x AS c1 FROM s WHERE x < 3"
#: By kind: how rounds are put together, the step, and what it makes of the rows of a round and the edges: each time the
#: values, the numbers of the rows of the round that they come from, and the edges.
STEPS = {
    "REACHED": ("UNION", "SELECT e.x, r.c1 FROM r JOIN e ON e.k = r.c0"),
    "PATHS": ("UNION ALL", "SELECT e.x, r.c1 + 1 FROM r JOIN e ON e.k = r.c0 WHERE r.c1 < 4"),
    "OUTER": ("UNION", "SELECT e.x, r.c1 + 1 FROM r LEFT JOIN e ON e.k = r.c0 WHERE r.c1 < 4"),
    "SEMI": ("UNION ALL", "SELECT r.c0 + 1, r.c1 FROM r WHERE EXISTS (SELECT 1 FROM e WHERE e.k = r.c0)"),
    "ANTI": (
        "UNION ALL",
        "SELECT r.c0 + 1, r.c1 FROM r WHERE r.c0 < 6 AND NOT EXISTS (SELECT 1 FROM e WHERE e.k = r.c0)",
    ),
    "TURNED": (
        "UNION",
        "SELECT e.x, 0 FROM e WHERE e.k < 4 AND EXISTS (SELECT 1 FROM r WHERE r.c0 = e.k)",
    ),
    "WITHOUT": (
        "UNION",
        "SELECT k, x FROM e WHERE NOT EXISTS (SELECT 1 FROM r WHERE c0 = k AND c1 > 2) AND x IN (SELECT c0 FROM r)",
    ),
    "GROUPS": (
        "UNION ALL",
        "SELECT e.x, CAST(max(r.c1) + 1 AS INT) FROM r JOIN e ON e.k = r.c0 WHERE r.c1 < 4 GROUP BY e.x",
    ),
}
ROUND = frozenset


def made(kind, rows, edges):
    """What a step makes of a round: values, the rows of the round, and the edges that they come from."""
    met = [(r, e) for r in rows for e in edges if r[0] is not None and r[0] == e[1]]
    if kind == "REACHED":
        return [((e[2], r[1]), [r], [e]) for r, e in met]
    if kind in ("PATHS", "OUTER"):
        found = [((e[2], r[1] + 1), [r], [e]) for r, e in met if r[1] < 4]
        lonely = [r for r in rows if all(r is not p for p, _ in met) and r[1] < 4]
        return found + [((None, r[1] + 1), [r], []) for r in lonely if kind == "OUTER"]
    if kind == "SEMI":
        partners = {r: [e for p, e in met if p is r] for r in rows}
        return [((r[0] + 1, r[1]), [r], partners[r]) for r in rows if partners[r]]
    if kind == "ANTI":
        alone = [r for r in rows if r[0] is not None and r[0] < 6 and all(r is not p for p, _ in met)]
        return [((r[0] + 1, r[1]), [r], []) for r in alone]
    if kind == "TURNED":
        return [
            ((e[2], 0), [r for r, o in met if o is e], [e]) for e in edges if e[1] < 4 and any(o is e for _, o in met)
        ]
    if kind == "WITHOUT":
        alone = [e for e in edges if all(o is not e or r[1] is None or r[1] <= 2 for r, o in met)]
        partners = {e: [r for r in rows if r[0] == e[2]] for e in alone}
        return [((e[1], e[2]), partners[e], [e]) for e in alone if partners[e]]
    groups = {}
    for r, e in met:
        if r[1] < 4:
            groups.setdefault(e[2], []).append((r, e))
    return [((x, max(r[1] for r, _ in g) + 1), [r for r, _ in g], [e for _, e in g]) for x, g in groups.items()]


def rounds_of(kind, starts, edges):
    """By round, by values: how often the row is there, and what it comes from."""
    rows = [((s[1], s[2]), frozenset([("s", s[0])])) for s in starts if s[2] < 3]
    rounds, seen = [], set()
    while True:
        counted = {}
        for values, lineage in rows:
            number, before = counted.get(values, (0, frozenset()))
            counted[values] = number + 1, before | lineage
        if STEPS[kind][0] == "UNION":
            counted = {v: (1, lineage) for v, (_, lineage) in counted.items() if v not in seen}
            seen |= counted.keys()
        if not counted:
            return rounds
        rounds.append(counted)
        copies = [(*v, i) for v, (n, _) in counted.items() for i in range(n)]
        rows = [
            (values, frozenset(("e", e[0]) for e in es).union(*(counted[r[:2]][1] for r in rs)))
            for values, rs, es in made(kind, copies, edges)
        ]


@pytest.mark.parametrize("seed", mostly_slow([6, 1, *range(7, 60)], 2, 4))
def test_rows_of_recursive_queries(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        tables = {}
        for name, most in (("s", 3), ("e", 6)):
            rows = [(i, rng.randint(1, 5), rng.randint(1, 5)) for i in range(1, rng.randint(2, most + 1))]
            tables[name] = rows
            connection.execute(f"CREATE TABLE {name} (rid INT PRIMARY KEY, k INT, x INT)")
            connection.execute(f"INSERT INTO {name} VALUES {', '.join(map(str, rows))}")
        connection.flush()
        for kind in rng.sample(list(STEPS), 4):
            union, step = STEPS[kind]
            query = f"WITH RECURSIVE r AS ({FIRST} {union} {step}) SELECT * FROM r"
            connection.execute(f"CREATE VIEW of_{kind} AS {query}")
            rounds = rounds_of(kind, tables["s"], tables["e"])
            check_rows(connection, kind, query, rounds)
            check_missing(connection, kind, tables, {v for r in rounds for v in r})


def check_rows(connection, kind, query, rounds):
    found = Counter(tuple(r) for r in connection.execute(query).fetchall())
    assert found == Counter(v for r in rounds for v, (n, _) in r.items() for _ in range(n)), kind
    for values in found:
        where = condition(dict(enumerate(values)))
        lines = connection.execute(f"EXPLAIN ROW {query} WHERE {where}").fetchall()
        wanted = frozenset().union(*(r[values][1] for r in rounds if values in r))
        assert rows_shown(lines) == wanted, (kind, values, lines)


def check_missing(connection, kind, tables, there):
    """The first round ends where its rows do, the later ones at the join."""
    for wanted in range(1, 8):
        if any(v[0] == wanted for v in there):
            continue
        lines = connection.execute(f"EXPLAIN MISSING ROW of_{kind} WHERE c0 = {wanted}").fetchall()
        assert any(parts(step)[1] == "Recursion" for step, *_ in lines), lines
        starts = {row["rid"] for _, relation, row, _ in lines if relation == "s" and row}
        assert starts == {s[0] for s in tables["s"] if s[1] == wanted}, (kind, lines)
        leading = {e[0] for e in tables["e"] if e[2] == wanted}
        if kind == "REACHED" and there and leading:
            # of the sides of the join the one with fewer rows is shown, none of which has a partner
            edges = {row["rid"] for relation, row in rows_read(lines, "table") if relation == "e"}
            reached = {(row["c0"], row["c1"]) for _, row in rows_read(lines, "row")}
            assert (edges, reached) == ((leading, set()) if len(leading) < len(there) else (set(), there)), lines


@pytest.mark.slow
def test_a_long_recursion_is_shown_and_an_endless_one_is_refused():
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        query = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < {}) SELECT * FROM r"
        lines = connection.execute(f"EXPLAIN ROW {query.format(200)} WHERE n = 150").fetchall()
        assert sum(parts(step)[1] == "round" for step, *_ in lines) == 149
        with pytest.raises(watersmeet.Error) as caught:
            connection.execute(f"EXPLAIN ROW {query.format(2000)} WHERE n = 1").fetchall()
        assert caught.value.condition == "FEATURE_NOT_SUPPORTED"
        assert "1000 rounds" in caught.value.detail
