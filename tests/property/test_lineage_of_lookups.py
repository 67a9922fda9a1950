"""EXPLAIN ROW of views whose rows are looked up, once, in tables that change: against the rule applied delivery by
delivery in plain Python (docs/SEMANTICS.md, "Temporal joins", EMIT ON ARRIVAL).

Each left row meets the right rows as they are at the end of its epoch. What is explained is exactly what a row was made
of then, whatever became of the right rows since, and however many equal rows there are.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.property.lineage_plans import rows_read
from tests.property.test_lineage import condition
from tests.thorough import mostly_slow

#: By kind, its FROM clause and what it shows.
SHOWN = "a.{0}k AS c0, a.x AS c1, b.x AS c2"
TEMPORAL = "FOR SYSTEM_TIME AS OF PROCTIME()"
KINDS = {
    "INNER": f"SELECT {SHOWN} FROM a JOIN b {TEMPORAL} ON a.k = b.k",
    "LEFT": f"SELECT {SHOWN} FROM a LEFT JOIN b {TEMPORAL} ON a.k = b.k",
    "FILTERED": f"SELECT {SHOWN} FROM a LEFT JOIN b {TEMPORAL} ON a.k = b.k AND b.x > 1 WHERE a.x < 3",
    "CHAIN": "SELECT a.{0}k AS c0, b.x AS c1, c.x AS c2 FROM a JOIN b "
    f"{TEMPORAL} ON a.k = b.k LEFT JOIN c {TEMPORAL} ON b.x = c.k",
    "SEMI": "SELECT a.{0}k AS c0, a.x AS c1 FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k) EMIT ON ARRIVAL",
    "ASOF": f"SELECT {SHOWN} FROM a ASOF JOIN b ON a.k = b.k AND a.x >= b.x EMIT ON ARRIVAL",
    "ASOF LEFT": f"SELECT {SHOWN} FROM a ASOF LEFT JOIN b ON a.k = b.k AND a.x >= b.x EMIT ON ARRIVAL",
}


@dataclass
class View:
    """A view. out: what came out, as values with the rows of tables that they come from. whole: it shows the number of
    its left row in the place of its key. there: by number of each left row, what b had when it came.
    """

    kind: str
    whole: bool
    out: list = field(default_factory=list)
    there: dict = field(default_factory=dict)

    @property
    def sql(self):
        return KINDS[self.kind].replace("a.{0}k", "a.rid" if self.whole else "a.k")

    def decide(self, left, b, c):
        """What comes out of a left row while b and c have these rows."""
        rid, k, x = left
        self.there[rid] = b
        first = rid if self.whole else k
        own = ("a", left)
        found = [r for r in b if k is not None and r[1] == k]
        if self.kind == "FILTERED":
            if x is None or x >= 3:
                return
            found = [r for r in found if r[2] > 1]
        if self.kind.startswith("ASOF"):
            below = [r for r in found if r[2] <= x]
            found = [max(below, key=lambda r: r[2])] if below else []
        if self.kind == "SEMI":
            self.out += [((first, x), frozenset([own, *(("b", r) for r in found)]))] if found else []
        elif self.kind == "CHAIN":
            for r in found:
                more = [s for s in c if s[1] == r[2]]
                self.out += [((first, r[2], s[2]), frozenset([own, ("b", r), ("c", s)])) for s in more]
                self.out += [] if more else [((first, r[2], None), frozenset([own, ("b", r)]))]
        else:
            self.out += [((first, x, r[2]), frozenset([own, ("b", r)])) for r in found]
            if not found and self.kind in ("LEFT", "FILTERED", "ASOF LEFT"):
                self.out.append(((first, x, None), frozenset([own])))

    def lineage(self, values):
        return frozenset().union(*(lineage for v, lineage in self.out if v == values))


def rows_of(lines):
    """The rows of tables among the steps, as they were."""
    return frozenset((name, (row["rid"], row["k"], row["x"])) for name, row in rows_read(lines, "table"))


def check(connection, name, view):
    rows = [tuple(r) for r in connection.execute(f"SELECT * FROM {name}").fetchall()]
    assert Counter(rows) == Counter(v for v, _ in view.out), view.sql
    for values in dict.fromkeys(rows):
        where = condition(dict(enumerate(values)))
        lines = connection.execute(f"EXPLAIN ROW SELECT * FROM {name} WHERE {where}").fetchall()
        assert rows_of(lines) == view.lineage(values), (view.sql, values, lines)
        assert any("as of commit" in (detail or "") for *_, detail in lines)
    if view.whole:
        check_missing(connection, name, view)
    lines = connection.execute(f"EXPLAIN ROW SELECT count(*) FROM {name}").fetchall()
    assert rows_of(lines) == frozenset().union(*(lineage for _, lineage in view.out)), (view.sql, lines)


def check_missing(connection, name, view):
    """Rows that did not come: each is searched among what was there when its left row came."""
    came = {values[0] for values, _ in view.out}
    for rid, b in view.there.items():
        if rid not in came:
            lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE c0 = {rid}").fetchall()
            shown = {row["rid"] for _, relation, row, _ in lines if relation == "a"}
            said = "; ".join(detail or "" for *_, detail in lines)
            if "not a.x < 3" in said:  # it looked nothing up
                assert shown == {rid}, (view.sql, lines)
                continue
            assert "as of commit" in said, (view.sql, lines)
            assert rid in shown or (not b and "it has no rows" in said), (view.sql, lines)
        if view.kind == "INNER":
            lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE c0 = {rid} AND c2 = 999").fetchall()
            (*_, said) = next(line for line in lines if line[1] == "b")
            wanted = f"no row with b.x = 999; the nearest b.x: below {max(r[2] for r in b)}" if b else "it has no rows"
            assert said.startswith(wanted + "; as of commit"), (said, wanted)
    lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE c0 = -7").fetchall()
    ended = [relation for _, relation, *_ in lines if relation not in (name, None)]
    assert ended[:1] == ["a"], lines
    assert ended[1:] in ([], ["b"]), lines  # which may be empty itself


def change(rng, connection, name, rows, values):
    """A random change of a table that is looked up."""
    kind = rng.choice(["INSERT", "INSERT", "UPDATE", "DELETE"])
    if kind == "INSERT" or not rows:
        row = (max((r[0] for r in rows), default=0) + 1, rng.randint(1, 3), next(values))
        connection.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", row)
        return [*rows, row]
    row = rng.choice(rows)
    if kind == "DELETE":
        connection.execute(f"DELETE FROM {name} WHERE rid = {row[0]}")
        return [r for r in rows if r != row]
    new = (row[0], rng.randint(1, 3), next(values))
    connection.execute(f"UPDATE {name} SET k = {new[1]}, x = {new[2]} WHERE rid = {row[0]}")
    return [new if r == row else r for r in rows]


@pytest.mark.parametrize("seed", mostly_slow(range(40), 3, 6))
def test_what_was_looked_up_in_what_changes(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT, k INT, x INT) APPEND ONLY")
        for name in "bc":
            connection.execute(f"CREATE TABLE {name} (rid INT PRIMARY KEY, k INT, x INT)")
            connection.execute(f"CREATE INDEX {name}_k ON {name} (k)")
        left, b, c, views = [], [], [], {}
        kinds = rng.sample(list(KINDS), 3)
        born = {rng.randrange(0, 3): [kind] for kind in kinds[:1]}
        born.setdefault(0, []).extend(kinds[1:])
        numbers = iter(range(1, 100))
        # values of b are all different, so that the nearest of a key is one row
        values = iter(rng.sample(range(6), 6) + list(range(6, 60)))
        for step in range(5):
            for kind in born.get(step, ()):
                view = views[f"v{len(views)}"] = View(kind, whole=rng.random() < 0.4)
                connection.execute(f"CREATE MATERIALIZED VIEW v{len(views) - 1} AS {view.sql}")
                for row in left:
                    view.decide(row, b, c)
            came = []
            for _ in range(rng.choice([0, 1, 2, 3])):
                what = rng.choice("abbc")
                if what == "a":
                    came.append((next(numbers), rng.choice([None, 1, 2, 3]), rng.randint(1, 4)))
                    connection.execute("INSERT INTO a VALUES (?, ?, ?)", came[-1])
                elif what == "b":
                    b = change(rng, connection, "b", b, values)
                else:
                    c = change(rng, connection, "c", c, iter([rng.randint(1, 9)]))
            if rng.random() < 0.7:
                row = (next(numbers), rng.randint(1, 3), rng.randint(1, 4))
                came.append(row)
                connection.execute("INSERT INTO a VALUES (?, ?, ?)", row)
            connection.flush()
            left += came
            for view in views.values():
                for row in came:
                    view.decide(row, b, c)
        for name, view in views.items():
            check(connection, name, view)


STREAMS = {
    "LATEST": "SELECT a.k AS c0, a.x AS c1, b.x AS c2 FROM a LATEST JOIN b ON a.k = b.k",
    "LEFT LATEST": "SELECT a.k AS c0, a.x AS c1, b.x AS c2 FROM a LEFT LATEST JOIN b ON a.k = b.k",
    "ASOF": "SELECT a.k AS c0, a.x AS c1, b.x AS c2 FROM a ASOF JOIN b ON a.k = b.k AND a.x >= b.x",
    "LEFT ASOF": "SELECT a.k AS c0, a.x AS c1, b.x AS c2 FROM a LEFT ASOF JOIN b ON a.k = b.k AND a.x >= b.x",
    "CHANGING": "SELECT a.k AS c0, a.x AS c1, m.x AS c2 FROM a JOIN m ON a.k = m.k",
    "LEFT CHANGING": "SELECT a.k AS c0, a.x AS c1, m.x AS c2 FROM a LEFT JOIN m ON a.k = m.k",
}
#: An ASOF join of streams keeps so many versions of a key.
VERSIONS = 3


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 4))
def test_what_was_looked_up_in_streams(seed):
    """Timeplus: the newest row, or the nearest of the newest ones; a stream with a key that changes. What came before
    a view began does not count.
    """
    rng = random.Random(seed)
    with watersmeet.connect(dialect="timeplus", runtime="inprocess", parallelism=1) as connection:
        for name in "ab":
            connection.execute(f"CREATE STREAM {name} (k int, x int)")
        connection.execute("CREATE MUTABLE STREAM m (k int, x int) PRIMARY KEY k")
        kinds, begun = rng.sample(list(STREAMS), 3), {}
        numbers = iter(rng.sample(range(1, 100), 99))
        b, m, out = [], {}, {}
        for step in range(5):
            for number, kind in enumerate(kinds):
                if number == step:
                    connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS {STREAMS[kind]}")
                    begun[number], out[number] = len(b), []
            came = []
            for _ in range(rng.choice([1, 2, 3, 4])):
                name, k, x = rng.choice("aabbm"), rng.randint(1, 2), next(numbers)
                if name == "a":
                    came.append((k, x))
                elif name == "b":
                    b.append((k, x))
                else:
                    m[k] = x
                connection.execute(f"INSERT INTO {name} (k, x) VALUES ({k}, {x})")
            connection.flush()
            for number, first in begun.items():
                kind = kinds[number]
                for k, x in came:
                    found = [r for r in b[first:] if r[0] == k]
                    if "CHANGING" in kind:
                        partner = ("m", k, m[k]) if k in m else None
                    elif "LATEST" in kind:
                        partner = ("b", *found[-1]) if found else None
                    else:
                        below = [r for r in found[-VERSIONS:] if r[1] <= x]
                        partner = ("b", *max(below, key=lambda r: r[1])) if below else None
                    if partner is not None:
                        out[number].append(((k, x, partner[2]), frozenset([("a", k, x), partner])))
                    elif "LEFT" in kind:
                        out[number].append(((k, x, None), frozenset([("a", k, x)])))
        for number, rows in out.items():
            found = [tuple(r) for r in connection.execute(f"SELECT * FROM table(v{number})").fetchall()]
            # without a match a view of Timeplus has the zero of the type
            shown = [tuple(0 if v is None else v for v in values) for values, _ in rows]
            assert Counter(tuple(0 if v is None else v for v in r) for r in found) == Counter(shown), kinds[number]
            for values in dict.fromkeys(found):
                where = condition(dict(enumerate(values)))
                lines = connection.execute(f"EXPLAIN ROW SELECT * FROM table(v{number}) WHERE {where}").fetchall()
                wanted = [
                    lineage for v, (_, lineage) in zip(shown, rows, strict=True) if v == tuple(w or 0 for w in values)
                ]
                read = frozenset((name, row["k"], row["x"]) for name, row in rows_read(lines, "stream"))
                assert read == frozenset().union(*wanted), (kinds[number], values, lines)
