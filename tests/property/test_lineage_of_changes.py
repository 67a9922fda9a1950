"""EXPLAIN ROW and EXPLAIN MISSING ROW of records of processors `SELECT TABLE` (Lenses): against docs/SEMANTICS.md,
"Records", applied epoch by epoch in plain Python.

A record is the row that a key has got in an epoch, and is explained as of that epoch, whatever became of the row since;
or it says that the key's row is gone, and shows what that row was made of in the epoch before.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.property.lineage_plans import parts
from tests.property.test_lineage import condition
from tests.thorough import mostly_slow

BOTH = "WITH a AS (SELECT TABLE * FROM a); WITH b AS (SELECT TABLE * FROM b); INSERT INTO {} SELECT TABLE "
#: By kind, what makes the processor. Tables have the columns c and n.
KINDS = {
    "PASSED": "INSERT INTO {} SELECT TABLE c AS x, n AS y FROM a WHERE c > 1",
    "PART": "INSERT INTO {} SELECT TABLE c AS x, c + 1 AS y FROM a",
    "COUNTED": "INSERT INTO {} SELECT TABLE c, COUNT(*) AS x, SUM(c) AS y FROM a GROUP BY c",
    "INNER": BOTH + "a.c AS x, b.c AS y FROM a INNER JOIN b",
    "LEFT": BOTH + "a.c AS x, b.c AS y FROM a LEFT JOIN b",
    "CHAIN": "INSERT INTO {} SELECT TABLE x + 1 AS x, y FROM passed",
}


def rows_of(kind, a, b):
    """What a query has: by key, the values and what they are made of. a, b: by key, key, c and n."""
    found = {}
    if kind == "COUNTED":
        for c in {row[1] for row in a.values()}:
            rows = [row for row in a.values() if row[1] == c]
            found[c] = (len(rows), c * len(rows)), frozenset(("a", *row) for row in rows)
        return found
    for key, row in a.items():
        _, c, n = row
        own, other = frozenset([("a", *row)]), b.get(key)
        if kind in ("PASSED", "CHAIN") and c > 1:
            found[key] = (c + (kind == "CHAIN"), n), own
        elif kind == "PART":
            found[key] = (c, c + 1), own
        elif kind in ("INNER", "LEFT") and other is not None:
            found[key] = (c, other[1]), own | {("b", *other)}
        elif kind == "LEFT":
            found[key] = (c, None), own
    return found


@dataclass
class Processor:
    """out: its records, as key, values (None of a key whose row is gone) and what they are made of."""

    kind: str
    there: dict = field(default_factory=dict)
    out: list = field(default_factory=list)

    def epoch(self, a, b):
        now = rows_of(self.kind, a, b)
        for key, (values, lineage) in now.items():
            if key not in self.there or self.there[key][0] != values:
                self.out.append((key, values, lineage))
        self.out += [(key, (None, None), lineage) for key, (_, lineage) in self.there.items() if key not in now]
        self.there = now


def read(lines):
    """The records of topics among the steps, but for those that only say why something is not there."""
    skipped, found = None, set()
    for step, relation, row, _ in lines:
        depth, own = parts(step)
        if skipped is not None and depth > skipped:
            continue
        skipped = depth if own in ("deleted", "no partner") else None
        if own == "topic":
            found.add((relation, row["_key"], row["c"], row["n"]))
    return found


def check(connection, name, processor):
    found = [tuple(r) for r in connection.execute(f"SELECT _key, x, y FROM {name}").fetchall()]
    keyed = processor.kind != "COUNTED"
    wanted = Counter((key, *values) for key, values, _ in processor.out)
    assert Counter(found) == wanted, processor.kind
    for key, *values in dict.fromkeys(found):
        where = f"_key = {key} AND {condition(dict(enumerate(values)))}".replace("c0", "x").replace("c1", "y")
        lines = connection.execute(f"EXPLAIN ROW SELECT * FROM {name} WHERE {where}").fetchall()
        made = (lineage for k, v, lineage in processor.out if (k, *v) == (key, *values))
        assert read(lines) == frozenset().union(*made), (processor.kind, where, lines)
        assert any("as of commit" in (detail or "") for *_, detail in lines)
        assert any(parts(step)[1] == "deleted" for step, *_ in lines) == (values == [None, None])
    for key in {1, 2, 3, 4} - {k for k, *_ in found}:
        lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE _key = {key}").fetchall()
        ends = {relation for _, relation, *_ in lines} - {name, "passed", None}
        assert ends, lines
        assert ends <= {"a", "b"}, lines
        shown = {row["_key"] if keyed else row["c"] for _, relation, row, _ in lines if relation in ends and row}
        assert shown <= {key}, lines


@pytest.mark.parametrize("seed", mostly_slow(range(40), 2, 4))
def test_the_changes_of_a_table(seed):
    rng = random.Random(seed)
    with watersmeet.connect(dialect="lenses", runtime="inprocess", parallelism=1) as connection:
        connection.execute("SET defaults.topic.autocreate=true")
        for name in "ab":
            connection.execute(f"CREATE TABLE {name} (_key int, c int, n int) FORMAT (INT, AVRO)")
        tables, numbers = {"a": {}, "b": {}}, iter(range(1, 100))
        kinds = ["PASSED", *rng.sample([k for k in KINDS if k != "PASSED"], 2)]
        names, processors = ["passed", "p1", "p2"], []
        for step in range(6):
            if step < len(kinds):
                connection.execute(KINDS[kinds[step]].format(names[step]))
                connection.flush()
                processors.append(Processor(kinds[step]))
                processors[-1].epoch(tables["a"], tables["b"])
            for _ in range(rng.choice([1, 2, 3])):
                name = rng.choice("aab")
                table = tables[name]
                if table and rng.random() < 0.3:
                    key = rng.choice(list(table))
                    connection.execute(f"INSERT INTO {name} (_key, _value) VALUES ({key}, NULL)")
                    del table[key]
                    continue
                row = (rng.randint(1, 3), rng.randint(1, 3), next(numbers))
                # equal times: a new time alone is a change, too
                values = f"({row[0]}, {row[1]}, {row[2]}, TIMESTAMP '2021-01-01 00:00:00')"
                connection.execute(f"INSERT INTO {name} (_key, c, n, `@time`) VALUES {values}")
                table[row[0]] = row
            connection.flush()
            for processor in processors:
                processor.epoch(tables["a"], tables["b"])
        for name, processor in zip(names, processors, strict=True):
            check(connection, name, processor)
