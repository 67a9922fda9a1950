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
from tests.property.lineage_plans import parts, rows_read
from tests.property.test_lineage import check_origins, condition
from tests.thorough import mostly_slow
from watersmeet import Error

#: By kind, its FROM clause and what it shows.
SHOWN = "a.{0}k AS c0, a.x AS c1, b.x AS c2"
TEMPORAL = "FOR SYSTEM_TIME AS OF PROCTIME()"
KINDS = {
    "INNER": f"SELECT {SHOWN} FROM a JOIN b {TEMPORAL} ON a.k = b.k",
    "LEFT": f"SELECT {SHOWN} FROM a LEFT JOIN b {TEMPORAL} ON a.k = b.k",
    "FILTERED": f"SELECT {SHOWN} FROM a LEFT JOIN b {TEMPORAL} ON a.k = b.k AND b.x > 1 WHERE a.x < 3",
    "CHAIN": "SELECT a.{0}k AS c0, b.x AS c1, c.x AS c2 FROM a JOIN b "
    f"{TEMPORAL} ON a.k = b.k LEFT JOIN c {TEMPORAL} ON b.x = c.k",
    "UNION": f"SELECT {SHOWN} FROM a JOIN b {TEMPORAL} ON a.k = b.k UNION ALL "
    f"SELECT a.{{0}}k, a.x, c.x FROM a LEFT JOIN c {TEMPORAL} ON a.k = c.k WHERE a.x < 3",
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
        elif self.kind == "UNION":
            self.out += [((first, x, r[2]), frozenset([own, ("b", r)])) for r in found]
            if x < 3:
                more = [s for s in c if k is not None and s[1] == k]
                self.out += [((first, x, s[2]), frozenset([own, ("c", s)])) for s in more]
                self.out += [] if more else [((first, x, None), frozenset([own]))]
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
    second = ["a"] if view.kind == "UNION" else []
    assert ended[1:] in (second, ["b", *second]), lines  # which may be empty itself


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


@pytest.mark.parametrize("seed", mostly_slow(range(40), 2, 7))
def test_what_was_looked_up_in_what_changes(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT, k INT, x INT) APPEND ONLY")
        make_looked_up(connection)
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


#: Views whose left rows may go: what they show, and their FROM clause. Those of the second half don't read the key.
GOING = {
    "INNER": ("a.rid, a.x, b.x", f"a JOIN b {TEMPORAL} ON a.k = b.k"),
    "LEFT": ("a.rid, b.x", f"a LEFT JOIN b {TEMPORAL} ON a.k = b.k"),
    "COMPARED": ("a.rid, b.x", f"a LEFT JOIN b {TEMPORAL} ON a.k = b.k AND b.x > a.x WHERE a.z < 3"),
    "CHAIN": ("a.rid, a.k, b.x, c.x", f"a JOIN b {TEMPORAL} ON a.k = b.k LEFT JOIN c {TEMPORAL} ON b.x = c.k"),
    "UNION": (
        "a.rid, b.x",
        f"a JOIN b {TEMPORAL} ON a.k = b.k UNION ALL SELECT a.rid, c.x FROM a JOIN c {TEMPORAL} ON a.z = c.k",
    ),
    "KEYLESS": ("a.k, b.x", f"a JOIN b {TEMPORAL} ON a.k = b.k"),
    "KEYLESS LEFT": ("a.z, b.x", f"a LEFT JOIN b {TEMPORAL} ON a.k = b.k"),
    "KEYLESS COMPARED": (
        "a.k, b.x",
        f"(SELECT k, x, z FROM a) a LEFT JOIN b {TEMPORAL} ON a.k = b.k AND b.x > a.x WHERE a.z < 3",
    ),
    "KEYLESS CHAIN": ("a.k, c.x", f"a JOIN b {TEMPORAL} ON a.k = b.k LEFT JOIN c {TEMPORAL} ON b.x = c.k"),
}


@dataclass
class GoingView:
    """A view whose left rows may go. met: by number and part of each left row that is there, the row, and what came
    out.
    """

    kind: str
    met: dict = field(default_factory=dict)

    @property
    def sql(self):
        shown, source = GOING[self.kind]
        named = ", ".join(f"{c} AS c{i}" for i, c in enumerate(shown.split(", ")))
        return f"SELECT {named} FROM {source}"

    def epoch(self, a, b, c):
        """What is there after an epoch: rows that have changed look up again, whatever the view reads of them."""
        met = {}
        for row in a:
            if self.kind.endswith("COMPARED") and row[3] >= 3:
                continue
            for part in (1, 2) if self.kind == "UNION" else (1,):
                before = self.met.get((row[0], part))
                met[row[0], part] = before if before and before[0] == row else (row, self.found(row, part, b, c))
        self.met = met

    def found(self, row, part, b, c):
        rid, k, x, z = row
        own, out = ("a", row), []
        if part == 2:
            return [((rid, r[2]), frozenset([own, ("c", r)])) for r in c if r[1] == z]
        shown = {"INNER": (rid, x), "CHAIN": (rid, k), "KEYLESS LEFT": (z,)}.get(self.kind, (rid,))
        shown = (k,) if self.kind in ("KEYLESS", "KEYLESS COMPARED", "KEYLESS CHAIN") else shown
        for r in [r for r in b if r[1] == k and (not self.kind.endswith("COMPARED") or r[2] > x)]:
            first = (*shown, r[2]) if self.kind != "KEYLESS CHAIN" else shown
            if self.kind.endswith("CHAIN"):
                more = [s for s in c if s[1] == r[2]]
                out += [((*first, s[2]), frozenset([own, ("b", r), ("c", s)])) for s in more]
                out += [] if more else [((*first, None), frozenset([own, ("b", r)]))]
            else:
                out.append((first, frozenset([own, ("b", r)])))
        return out if out or not self.kind.endswith(("LEFT", "COMPARED")) else [((*shown, None), frozenset([own]))]

    @property
    def out(self):
        return [row for _, rows in self.met.values() for row in rows]


def change_left(rng, connection, rows):
    """A random change of the left table: of one of its columns, or of whether a row is there."""
    rid, column = rng.randint(1, 4), rng.choice("kxz")
    row = next((r for r in rows if r[0] == rid), None)
    if row is None:
        row = (rid, *(rng.randint(1, 3) for _ in range(3)))
        connection.execute("INSERT INTO a VALUES (?, ?, ?, ?)", row)
        return [*rows, row]
    rest = [r for r in rows if r != row]
    if rng.random() < 0.2:
        connection.execute(f"DELETE FROM a WHERE rid = {rid}")
        return rest
    values = dict(zip("rkxz", row, strict=True)) | {column: rng.randint(1, 3)}
    connection.execute(f"UPDATE a SET {column} = {values[column]} WHERE rid = {rid}")
    return [*rest, tuple(values.values())]


def make_looked_up(connection, names="bc"):
    """Makes the tables that are looked up."""
    for name in names:
        connection.execute(f"CREATE TABLE {name} (rid INT PRIMARY KEY, k INT, x INT)")
        connection.execute(f"CREATE INDEX {name}_k ON {name} (k)")


@pytest.mark.parametrize("seed", mostly_slow([4, 5, *range(6, 40)], 2, 4))
def test_what_was_looked_up_by_rows_that_may_go(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT PRIMARY KEY, k INT, x INT, z INT)")
        make_looked_up(connection)
        a, b, c, views = [], [], [], {}
        kinds, before = rng.sample(list(GOING), 3), None
        for step in range(6):
            if step < len(kinds):
                views[f"v{step}"] = view = GoingView(kinds[step])
                connection.execute(f"CREATE MATERIALIZED VIEW v{step} AS {view.sql}")
                view.epoch(a, b, c)
            for _ in range(rng.choice([1, 2, 3, 4])):
                what = rng.choice("aabbc")
                if what == "a":
                    a = change_left(rng, connection, a)
                elif what == "b":
                    b = change(rng, connection, "b", b, iter([rng.randint(1, 4)]))
                else:
                    c = change(rng, connection, "c", c, iter([rng.randint(1, 4)]))
            connection.flush()
            for view in views.values():
                view.epoch(a, b, c)
            if step == 3:
                ((number, *_), *_) = connection.execute("SHOW COMMITS").fetchall()
                before = number, {name: view.out for name, view in views.items()}
        for name, view in views.items():
            check_origins(connection, name, view.out)
            check_origins(connection, name, before[1][name], f"FOR SYSTEM_TIME AS OF COMMIT {before[0]}")
            came = {values[0] for values, _ in view.out}
            for row in [r for r in a if r[0] not in came and "KEYLESS" not in view.kind]:
                lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE c0 = {row[0]}").fetchall()
                then = {tuple(r.values()) for _, relation, r, _ in lines if relation == "a" and r is not None}
                assert then <= {row}, (view.sql, lines)
                assert then or any("it has no rows" in (detail or "") for *_, detail in lines), (view.sql, lines)


#: Joins of a stream with `b`, a stream; `m`, a mutable one; `w`, of which all versions count.
STREAMS = [
    f"{kind} {join}".strip()
    for kind in ("", "LEFT")
    for join in (
        "LATEST JOIN b ON a.k = b.k",
        "LATEST JOIN w ON a.k = w.k",
        "ASOF JOIN b ON a.k = b.k AND a.x >= b.x",
        "ASOF JOIN m ON a.k = m.k AND a.x >= m.x",
        "ASOF JOIN w ON a.k = w.k AND a.x >= w.x",
        "JOIN m ON a.k = m.k",
        "JOIN table(b) AS b ON a.k = b.k",
        "JOIN table(m) AS m ON a.k = m.k",
    )
]
#: An ASOF join of streams keeps so many versions of a key.
VERSIONS = 3


@dataclass
class StreamView:
    """A view of Timeplus that began with `there` in the stream that it looks up. came: what came to it since."""

    join: str
    there: list
    came: list = field(default_factory=list)
    out: list = field(default_factory=list)
    alone: list = field(default_factory=list)

    @property
    def right(self):
        return self.join.partition("JOIN ")[2].removeprefix("table(")[0]

    @property
    def sql(self):
        return f"SELECT a.k AS c0, a.x AS c1, {self.right}.x AS c2 FROM a {self.join}"

    def decide(self, left, now):
        """What comes out of a left row while the stream that is looked up has the rows `now`."""
        k, x = left
        if "table(" in self.join:
            found = [r for r in self.there if r[0] == k]
        elif "LATEST" in self.join or "ASOF" in self.join:
            # of what replaces rows, those that were there count, too
            found = [r for r in (self.came if self.right == "b" else self.there + self.came) if r[0] == k]
            if "ASOF" in self.join:
                found = [r for r in sorted(found, key=lambda r: r[1])[-VERSIONS:] if r[1] <= x]
            found = found[-1:]
        else:
            found = [r for r in now if r[0] == k]
        self.out += [((k, x, r[1]), frozenset([("a", k, x), (self.right, *r)])) for r in found]
        if not found and "LEFT" in self.join:
            self.out.append(((k, x, None), frozenset([("a", k, x)])))
        elif not found:
            self.alone.append(left)


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 4))
def test_what_was_looked_up_in_streams(seed):
    """Timeplus: the newest row, or the nearest of the newest ones; a stream with a key that changes; what was there
    when the view began. What came to a stream before that does not count.
    """
    rng = random.Random(seed)
    with watersmeet.connect(dialect="timeplus", runtime="inprocess", parallelism=1) as connection:
        for name in "ab":
            connection.execute(f"CREATE STREAM {name} (k int, x int)")
        connection.execute("CREATE MUTABLE STREAM m (k int, x int) PRIMARY KEY k")
        connection.execute("CREATE STREAM w (k int, x int) PRIMARY KEY k SETTINGS mode = 'versioned_kv'")
        joins, views = rng.sample(STREAMS, 4), {}
        numbers = iter(rng.sample(range(1, 100), 99))
        now = {"b": [], "m": [], "w": []}
        for step in range(5):
            for number, join in enumerate(joins):
                if number == step:
                    views[number] = view = StreamView(join, [])
                    view.there = list(now[view.right])
                    connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS {view.sql}")
            came = []
            for _ in range(rng.choice([1, 2, 3, 4])):
                name, rows = rng.choice("aabbmmww"), []
                for _ in range(rng.choice([1, 1, 2])):
                    rows.append((rng.randint(1, 2), next(numbers)))
                    if name == "a":
                        came.append(rows[-1])
                        continue
                    kept = now[name] if name == "b" else [r for r in now[name] if r[0] != rows[-1][0]]
                    now[name] = [*kept, rows[-1]]
                    for view in views.values():
                        view.came += [rows[-1]] * (view.right == name)
                connection.execute(f"INSERT INTO {name} (k, x) VALUES {', '.join(map(str, rows))}")
            connection.flush()
            for view in views.values():
                for left in came:
                    view.decide(left, now[view.right])
        for number, view in views.items():
            check_stream(connection, f"v{number}", view)


def check_stream(connection, name, view):
    found = [tuple(r) for r in connection.execute(f"SELECT * FROM table({name})").fetchall()]
    # without a match a view of Timeplus has the zero of the type
    shown = [tuple(0 if v is None else v for v in values) for values, _ in view.out]
    assert Counter(tuple(0 if v is None else v for v in r) for r in found) == Counter(shown), view.join
    for values in dict.fromkeys(found):
        where = condition(dict(enumerate(values)))
        lines = connection.execute(f"EXPLAIN ROW SELECT * FROM table({name}) WHERE {where}").fetchall()
        wanted = [
            lineage for v, (_, lineage) in zip(shown, view.out, strict=True) if v == tuple(w or 0 for w in values)
        ]
        read = frozenset((name, row["k"], row["x"]) for name, row in rows_read(lines, "stream"))
        assert read == frozenset().union(*wanted), (view.join, values, lines)
    for k, x in view.alone:
        lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE c0 = {k} AND c1 = {x}").fetchall()
        ends = {relation for _, relation, *_ in lines} - {name, None}
        read = {(row["k"], row["x"]) for _, relation, row, _ in lines if relation == "a"}
        # its own row, without a partner; or where its partner would have to be
        assert (read == {(k, x)} and any(parts(s)[1] == "no partner" for s, *_ in lines)) or ends == {view.right}, lines


TABLES = [
    f'{kind} JOIN "d" {moment} ON s.k = "d"."k"'.strip()
    for kind in ("", "LEFT")
    for moment in ("", "FOR SYSTEM_TIME AS OF PROCTIME()")
]


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 4))
def test_what_streams_looked_up_in_tables(seed):
    """SQLstream: a stream meets a table as it was when the view began, or as it is when its rows come."""
    rng = random.Random(seed)
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE STREAM s (k INTEGER, n INTEGER)")
        connection.execute("SET dialect = 'risingwave'")
        connection.execute("CREATE TABLE d (rid INT PRIMARY KEY, k INT, x INT)")
        connection.execute("CREATE INDEX d_k ON d (k)")
        d, began, out, lefts = [], {}, {}, []
        joins, values = rng.sample(TABLES, 3), iter(range(100))
        for step in range(5):
            for _ in range(rng.choice([0, 1, 2, 3])):
                d = change(rng, connection, "d", d, iter([rng.randint(1, 3)]))
            connection.execute("SET dialect = 'sqlstream'")
            if step < len(joins):
                began[step], out[step] = d, []
                shown = 's.k AS c0, "d"."x" AS c1'
                connection.execute(f"CREATE MATERIALIZED VIEW v{step} AS SELECT STREAM {shown} FROM s {joins[step]}")
            came = [(rng.randint(1, 3), next(values)) for _ in range(rng.choice([0, 1, 2]))]
            for k, n in came:
                time = f"TIMESTAMP '2019-01-01 00:00:{n:02}'"
                connection.execute(f"INSERT INTO s (ROWTIME, k, n) VALUES ({time}, {k}, {n})")
            connection.execute("SET dialect = 'risingwave'")
            for _ in range(rng.choice([0, 1])):
                d = change(rng, connection, "d", d, iter([rng.randint(1, 3)]))
            connection.flush()
            lefts += came
            for number, there in began.items():
                for k, n in came:
                    found = [r for r in (d if "PROCTIME" in joins[number] else there) if r[1] == k]
                    out[number] += [((k, r[2]), frozenset([("S", n), ("d", r)])) for r in found]
                    if not found and "LEFT" in joins[number]:
                        out[number].append(((k, None), frozenset([("S", n)])))
        for number, rows in out.items():
            connection.execute("SET dialect = 'sqlstream'")
            found = [tuple(r) for r in connection.execute(f"SELECT c0, c1 FROM v{number}").fetchall()]
            assert Counter(found) == Counter(v for v, _ in rows), joins[number]
            for wanted in dict.fromkeys(found):
                where = condition(dict(enumerate(wanted)))
                lines = connection.execute(f"EXPLAIN ROW SELECT * FROM v{number} WHERE {where}").fetchall()
                read = {("S", row["N"]) for _, row in rows_read(lines, "stream")}
                read |= {(name, (row["rid"], row["k"], row["x"])) for name, row in rows_read(lines, "table")}
                assert read == frozenset().union(*(lineage for v, lineage in rows if v == wanted)), (wanted, lines)


#: Processors of a stream `a` that looks up a table `b`.
PROCESSORS = {
    "FILTERED": "SELECT STREAM c AS ac, 0 AS bc FROM a WHERE c > 1",
    "BY KEY": "SELECT STREAM a.c AS ac, b.c AS bc FROM a INNER JOIN b",
    "BY VALUE": "SELECT STREAM a.c AS ac, b.c AS bc FROM a INNER JOIN b ON a.c = b.c",
    "WAITING": "SELECT STREAM a.n AS ac, b.n AS bc FROM a LEFT JOIN b",
    "WAITING VALUES": "SELECT STREAM a.c AS ac, b.c AS bc FROM a LEFT JOIN b",
    "CONDITION": "SELECT STREAM a.c AS ac, b.c AS bc FROM a INNER JOIN b ON a._key = b._key AND b.c > 1 WHERE a.c < 3",
}


def meets(kind, left, right):
    """Whether a record of the stream meets one of the table. Both are key, c and n."""
    if kind == "CONDITION" and (left[1] >= 3 or right[1] <= 1):
        return False
    place = 1 if kind == "BY VALUE" else 0
    return left[place] == right[place]


@dataclass
class ProcessorOf:
    """A processor. unclear: values of records that had met something before, and would meet the same again: which of
    those that waited came out then can't be told.
    """

    kind: str
    came: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    out: list = field(default_factory=list)
    unclear: set = field(default_factory=set)

    def epoch(self, came, table):
        """Each record meets the table when it comes; in an outer join, later, if it has met nothing."""
        waited, self.waiting = self.waiting, []
        for left in [*self.came, *came]:
            if self.kind == "FILTERED":
                self.out += [(self.values(left, None), [("a", *left)])] if left in came and left[1] > 1 else []
                continue
            found = [r for r in table.values() if meets(self.kind, left, r)]
            if left not in came and left not in waited:
                self.unclear |= {self.values(left, r) for r in found}
                continue
            self.out += [(self.values(left, r), [("a", *left), ("b", *r)]) for r in found]
            if not found and "WAITING" in self.kind:
                self.waiting.append(left)
                self.out += [(self.values(left, None), [("a", *left)])] if left in came else []
        self.came += came

    def values(self, left, right):
        place = 2 if self.kind == "WAITING" else 1
        return left[place], (right[place] if right else 0 if self.kind == "FILTERED" else None)


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 4))
def test_what_processors_looked_up(seed):
    """Lenses: each record of a stream meets the last records of a table's keys as they are at the end of its epoch. In
    an outer join one that meets nothing comes out once more with the first that it meets.
    """
    rng = random.Random(seed)
    with watersmeet.connect(dialect="lenses", runtime="inprocess", parallelism=1) as connection:
        connection.execute("SET defaults.topic.autocreate=true")
        for name in "ab":
            connection.execute(f"CREATE TABLE {name} (_key int, c int, n int) FORMAT (INT, AVRO)")
        kinds, processors, lefts, table = rng.sample(list(PROCESSORS), 3), [], [], {}
        numbers = iter(range(1, 100))
        for step in range(6):
            if step < len(kinds):
                names = "WITH a AS (SELECT STREAM * FROM a); WITH b AS (SELECT TABLE * FROM b); "
                used = names if "JOIN" in PROCESSORS[kinds[step]] else ""
                connection.execute(f"{used}INSERT INTO p{step} {PROCESSORS[kinds[step]]}")
                connection.flush()
                processors.append(ProcessorOf(kinds[step]))
                processors[-1].epoch(lefts, table)
            came = []
            for _ in range(rng.choice([1, 2, 3])):
                name, row = rng.choice("aab"), (rng.randint(1, 2), rng.randint(1, 3), next(numbers))
                if table and rng.random() < 0.25:
                    key = rng.choice(list(table))
                    connection.execute(f"INSERT INTO b (_key, _value) VALUES ({key}, NULL)")
                    del table[key]
                    continue
                # equal times, so that equal records differ in nothing but their place
                values = f"({row[0]}, {row[1]}, {row[2]}, TIMESTAMP '2021-01-01 00:00:00')"
                connection.execute(f"INSERT INTO {name} (_key, c, n, `@time`) VALUES {values}")
                if name == "a":
                    came.append(row)
                else:
                    table[row[0]] = row
            connection.flush()
            lefts = [*lefts, *came]
            for processor in processors:
                processor.epoch(came, table)
        for number, processor in enumerate(processors):
            check_processor(connection, f"p{number}", processor)


def check_processor(connection, name, processor):
    rows = [tuple(r) for r in connection.execute(f"SELECT ac, bc FROM {name}").fetchall()]
    assert Counter(rows) == Counter(values for values, _ in processor.out), processor.kind
    for values in dict.fromkeys(rows):
        where = " AND ".join(
            f"{c} IS NULL" if v is None else f"{c} = {v}" for c, v in zip(("ac", "bc"), values, strict=True)
        )
        try:
            lines = connection.execute(f"EXPLAIN ROW SELECT * FROM {name} WHERE {where}").fetchall()
        except Error as err:
            assert err.condition == "HISTORY_GONE"
            assert processor.kind == "WAITING VALUES", err
            assert values in processor.unclear, (values, err.detail)
            continue
        read = {(topic, row["_key"], row["c"], row["n"]) for topic, row in rows_read(lines, "topic")}
        assert read == {r for v, lineage in processor.out if v == values for r in lineage}, (processor.kind, lines)
    shown = {first for first, _ in rows}
    for absent in {1, 2, 3} - shown:
        lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE ac = {absent}").fetchall()
        ends = {relation for _, relation, *_ in lines} - {name, None}
        assert ends, lines
        assert ends <= {"a", "b"}, lines
