"""Views that read different columns of one join that decides once for each row: all of them agree.

A view that reads all columns is the reference. Every other view is made at the same moment over the same join, reads a
random part of the columns, in the query itself or in a subquery or plain view in FROM, and may group the rows. After
each epoch its content is the projection (or the groups) of the reference: the matches of a row depend on the row, not
on the columns that the view reads of it (docs/SEMANTICS.md, "Temporal joins").
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow
from watersmeet.algebra.nodes import Binary, TemporalJoin
from watersmeet.algebra.rewrites import required
from watersmeet.planner import asof

START_S = 1_700_000_000
NOW = "FOR SYSTEM_TIME AS OF PROCTIME()"
LEFT = ("l.id", "l.k", "l.x", "l.y")


@dataclass(frozen=True)
class Kind:
    """A join. source: its FROM clause, with `{}` for the left item. left: the left item, with `{}` for the columns of
    its subquery; a table needs no subquery. columns, right: those of the left and the right side. needed: the left
    columns that `source` reads. suffix: the clauses after FROM. whole: the subquery always has all columns. grouped: a
    view may group the rows.
    """

    source: str
    left: str = "l"
    right: tuple[str, ...] = ("d.v", "d.w")
    needed: tuple[str, ...] = ("k",)
    suffix: str = ""
    columns: tuple[str, ...] = LEFT
    whole: bool = False
    grouped: bool = True

    @property
    def all_columns(self):
        return (*self.columns, *self.right)

    @property
    def tables(self):
        """The tables that it reads, in RisingWave."""
        found = re.findall(r"(?:FROM|JOIN) ([a-z])\b", f"{self.source} {self.suffix} FROM {self.left}")
        return [*found, *(["l"] if self.left == "stored" else [])]

    def item(self, columns=None):
        """The left item with these columns; by default with all."""
        if "{" in self.left:
            return f"({self.left.format('*' if columns is None else ', '.join(columns))}) AS l"
        if columns is None or self.whole:
            return self.left if self.left == "l" else f"{self.left} AS l"
        return f"(SELECT {', '.join(columns)} FROM {self.left}) AS l"


RISINGWAVE = {
    "inner": Kind(f"{{}} JOIN d {NOW} ON l.k = d.a"),
    "left": Kind(f"{{}} LEFT JOIN d {NOW} ON l.k = d.a"),
    "compared": Kind(f"{{}} LEFT JOIN d {NOW} ON l.k = d.a AND d.v > l.x", needed=("k", "x")),
    "filtered": Kind(f"{{}} LEFT JOIN d {NOW} ON l.k = d.a", needed=("k", "x"), suffix="WHERE l.x < 3"),
    "many": Kind(f"{{}} LEFT JOIN e {NOW} ON l.k = e.a", right=("e.id", "e.v", "e.w")),
    "keyless": Kind(f"{{}} JOIN e {NOW} ON l.k = e.a", left="u", right=("e.id", "e.v", "e.w")),
    "chain": Kind(f"{{}} LEFT JOIN d {NOW} ON l.k = d.a LEFT JOIN e {NOW} ON d.v = e.a", right=("d.v", "e.v", "e.w")),
    "pair": Kind(f"{{}} JOIN m ON l.x = m.k JOIN d {NOW} ON m.x = d.a", needed=("x",), right=("m.id", "m.y", "d.v")),
    "outer pair": Kind(
        f"{{}} LEFT JOIN m ON l.x = m.k JOIN d {NOW} ON l.k = d.a", needed=("k", "x"), right=("m.y", "d.v")
    ),
    "union": Kind(f"{{}} JOIN d {NOW} ON l.k = d.a", left="SELECT {0} FROM l UNION ALL SELECT {0} FROM u"),
    "first rows": Kind(f"{{}} JOIN d {NOW} ON l.k = d.a", left="SELECT {} FROM l ORDER BY x, id LIMIT 3"),
    "numbered": Kind(
        f"{{}} JOIN d {NOW} ON l.k = d.a",
        left="(SELECT *, row_number() OVER (PARTITION BY k ORDER BY x, id) AS r FROM l)",
        columns=(*LEFT, "l.r"),
        whole=True,
    ),
    "groups": Kind(
        f"{{}} LEFT JOIN d {NOW} ON l.k = d.a",
        left="(SELECT k, x, count(*) AS y, sum(y) AS id FROM l GROUP BY k, x)",
        whole=True,
    ),
    "distinct": Kind(
        f"{{}} LEFT JOIN d {NOW} ON l.k = d.a", left="(SELECT DISTINCT k, x FROM l)", columns=("l.k", "l.x"), whole=True
    ),
    "over a view": Kind(f"{{}} LEFT JOIN d {NOW} ON l.k = d.a", left="stored"),
    "timed": Kind(
        f"{{}} LEFT JOIN d {NOW} ON l.k = d.a", left="SELECT {} FROM a WHERE ts > now() - INTERVAL '1 minute'"
    ),
    "of rows that stay": Kind(f"{{}} LEFT JOIN d {NOW} ON l.k = d.a", left="a"),
    "on arrival": Kind(
        "{} LEFT JOIN b ON l.k = b.a", left="a", right=("b.v", "b.w"), suffix="EMIT ON ARRIVAL", grouped=False
    ),
    "semi": Kind(
        "{}",
        left="a",
        right=(),
        needed=("k", "x"),
        suffix="WHERE EXISTS (SELECT 1 FROM e WHERE e.a = l.k AND e.v > l.x) EMIT ON ARRIVAL",
        grouped=False,
    ),
    "anti": Kind(
        "{}",
        left="a",
        right=(),
        suffix="WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.a = l.k) EMIT ON ARRIVAL",
        grouped=False,
    ),
    "nearest": Kind(
        "{} ASOF LEFT JOIN e ON l.k = e.a AND l.x >= e.v",
        left="a",
        right=("e.id", "e.v", "e.w"),
        needed=("k", "x"),
        suffix="EMIT ON ARRIVAL",
        grouped=False,
    ),
    "versions": Kind(
        "{} LEFT JOIN h FOR SYSTEM_TIME AS OF l.ts ON l.k = h.a", left="a", needed=("k", "ts"), right=("h.v", "h.w")
    ),
}
TIMEPLUS = {
    f"{kind} {name}".strip(): Kind(f"{{}} {kind} {join}", needed=("k", "x"), right=right)
    for kind in ("", "LEFT")
    for name, join, right in (
        ("latest", "LATEST JOIN b ON l.k = b.k", ("b.v", "b.w")),
        ("latest of versions", "LATEST JOIN v ON l.k = v.k", ("v.id", "v.v", "v.w")),
        ("latest of mutable", "LATEST JOIN m ON l.k = m.k", ("m.id", "m.v", "m.w")),
        ("asof", "ASOF JOIN b ON l.k = b.k AND l.x >= b.v", ("b.v", "b.w")),
        ("asof of versions", "ASOF JOIN v ON l.k = v.k AND l.x >= v.v", ("v.id", "v.v", "v.w")),
        ("mutable", "JOIN m ON l.k = m.k", ("m.id", "m.v", "m.w")),
        ("versioned", "JOIN v ON l.k = v.k", ("v.id", "v.v", "v.w")),
        ("changelog", "JOIN c ON l.k = c.k", ("c.id", "c.v", "c.w")),
        ("last of key", "JOIN changelog(b, k) AS f ON l.k = f.k", ("f.v", "f.w")),
        ("dictionary", "JOIN t ON l.k = t.id", ("t.v", "t.w")),
    )
}
TIMEPLUS["recent"] = Kind(
    "{} LEFT JOIN m ON l.k = m.k",
    left="SELECT {} FROM l WHERE _tp_time > now() - 1m",
    columns=("l.id", "l.k", "l.x", "l.y"),
    right=("m.id", "m.v", "m.w"),
)
SQLSTREAM = {
    f"{kind} {name}".strip(): Kind(
        f'{{}} {kind} JOIN "d" {moment} ON l.k = "d"."a"',
        left="s",
        right=('"d"."v"', '"d"."w"'),
        whole=True,
        grouped=False,
    )
    for kind in ("", "LEFT")
    for name, moment in (("as it was", ""), ("as it is", NOW))
}


def read(rng, kind):
    """Some of the columns of a join, and the columns of a subquery for its left side, or None."""
    columns = tuple(c for c in kind.all_columns if rng.random() < 0.4) or (rng.choice(kind.all_columns),)
    own = {c.removeprefix("l.") for c in columns if c in kind.columns} | set(kind.needed)
    everything = [c.removeprefix("l.") for c in kind.columns]
    inner = [c for c in dict.fromkeys([*everything, *kind.needed]) if c in own or rng.random() < 0.2]
    return columns, inner if rng.random() < 0.5 else None


def named(column):
    return column.replace(".", "_").replace('"', "")


class Views:
    """The reference of a kind of join, and views that read less. prefix: the words in front of each query's columns.
    shown: FROM of a query that reads a view.
    """

    def __init__(self, rng, connection, name, kind, shown="{}", prefix="SELECT"):
        self.connection, self.kind, self.shown = connection, kind, shown
        self.reference, self.parts, self.texts = f"{name}_0", {}, {}
        self._make(self.reference, prefix, kind.all_columns, kind.item(), "")
        for number in range(1, 4):
            columns, inner = read(rng, kind)
            item = kind.item(inner)
            if inner is not None and item.startswith("(") and rng.random() < 0.3:
                plain = f"{name}_plain{number}"
                self.connection.execute(f"CREATE VIEW {plain} AS {item.removesuffix(' AS l')[1:-1]}")
                item = f"{plain} AS l"
            grouped = kind.grouped and rng.random() < 0.3
            columns = columns[:1] if grouped else columns
            more = (f" GROUP BY {columns[0]}", ", count(*) AS n") if grouped else ("",)
            self._make(f"{name}_{number}", prefix, columns, item, *more)
            self.parts[f"{name}_{number}"] = columns, grouped

    def _make(self, name, prefix, columns, item, more, further=""):
        named_columns = ", ".join(f"{c} AS {named(c)}" for c in columns)
        source = f"{self.kind.source.format(item)} {self.kind.suffix}{more}"
        self.texts[name] = f"{prefix} {named_columns}{further} FROM {source}"
        self.connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {self.texts[name]}")

    def rows(self, name, columns, further=""):
        wanted = ", ".join(map(named, columns)) + further
        return Counter(
            map(tuple, self.connection.execute(f"SELECT {wanted} FROM {self.shown.format(name)}").fetchall())
        )

    def check(self):
        everything = self.kind.all_columns
        reference = self.rows(self.reference, everything)
        for name, (columns, grouped) in self.parts.items():
            places = [everything.index(c) for c in columns]
            wanted = Counter()
            for row, times in reference.items():
                wanted[tuple(row[p] for p in places)] += times
            if grouped:
                wanted = Counter((*row, times) for row, times in wanted.items())
            found = self.rows(name, columns, ", n" if grouped else "")
            assert found == wanted, (self.texts[name], self.texts[self.reference])


def small(rng, least=1, most=2):
    return rng.randint(least, most)


def change_keyed(rng, rows, name, key, columns):
    """A statement that inserts, updates or deletes a row of a table. rows: the keys of those that it has."""
    number, own = rng.randint(1, 4 if key == "id" else 3), rows.setdefault(name, set())
    if number not in own:
        own.add(number)
        values = ", ".join(str(small(rng)) for _ in columns)
        return f"INSERT INTO {name} ({key}, {', '.join(columns)}) VALUES ({number}, {values})"
    if rng.random() < 0.25:
        own.remove(number)
        return f"DELETE FROM {name} WHERE {key} = {number}"
    return f"UPDATE {name} SET {rng.choice(columns)} = {small(rng, 1, 3)} WHERE {key} = {number}"


def timestamp(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def run_risingwave(seed, kinds=None):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=rng.choice([1, 3])) as connection:
        harness, now_s, rows = Harness(connection), START_S, {}
        harness.set_clock(now_s * 1_000_000)
        for name in "lm":
            connection.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, k INT, x INT, y INT)")
        connection.execute(
            "CREATE TABLE u (id INT, k INT, x INT, y INT); CREATE TABLE d (a INT PRIMARY KEY, v INT, w INT); "
            "CREATE TABLE e (id INT PRIMARY KEY, a INT, v INT, w INT); CREATE INDEX e_a ON e (a); "
            "CREATE TABLE a (id INT, k INT, x INT, y INT, ts TIMESTAMP) APPEND ONLY; "
            "CREATE TABLE b (a INT, v INT, w INT) APPEND ONLY; "
            "CREATE TABLE h (a INT PRIMARY KEY, v INT, w INT, ts TIMESTAMP, "
            "WATERMARK FOR ts AS ts - INTERVAL '10 minutes'); "
            "CREATE MATERIALIZED VIEW stored AS SELECT * FROM l"
        )

        def change():
            name = rng.choice([t for v in views for t in v.kind.tables])
            if name in "lm":
                return change_keyed(rng, rows, name, "id", ("k", "x", "y"))
            if name == "e":
                return change_keyed(rng, rows, name, "id", ("a", "v", "w"))
            if name == "d":
                return change_keyed(rng, rows, name, "a", ("v", "w"))
            if name == "h":
                values = f"{small(rng)}, {small(rng)}, {small(rng)}, '{timestamp(now_s + small(rng, -9, 9))}'"
                return f"INSERT INTO h VALUES ({values})"
            if name == "b":
                return f"INSERT INTO b VALUES ({small(rng)}, {small(rng)}, {small(rng)})"
            number = small(rng)
            if name == "u" and rng.random() < 0.5:
                return rng.choice(
                    [f"DELETE FROM u WHERE id = {number}", f"UPDATE u SET y = {small(rng)} WHERE id = {number}"]
                )
            values = f"{number}, {small(rng)}, {small(rng)}, {small(rng)}"
            at = f", '{timestamp(now_s + small(rng, -40, 0))}'" if name == "a" else ""
            return f"INSERT INTO {name} VALUES ({values}{at})"

        views = []
        for step in range(9):
            if step < 3:
                name = kinds[step % len(kinds)] if kinds else rng.choice(list(RISINGWAVE))
                views.append(Views(rng, connection, f"v{step}", RISINGWAVE[name]))
            for _ in range(rng.choice([1, 2, 4])):
                connection.execute(change())
            now_s += rng.choice([0, 10, 30])
            harness.set_clock(now_s * 1_000_000)
            connection.flush()
            for view in views:
                view.check()
            if rng.random() < 0.2:
                connection.execute(f"ALTER DATABASE SET parallelism = {rng.choice([1, 2, 3])}")


@pytest.mark.parametrize("seed", mostly_slow(range(60), 3, 9))
def test_risingwave(seed):
    run_risingwave(seed)


def run_timeplus(seed):
    rng = random.Random(seed)
    with watersmeet.connect(dialect="timeplus", runtime="inprocess", parallelism=rng.choice([1, 3])) as connection:
        harness, now_s = Harness(connection), START_S
        harness.set_clock(now_s * 1_000_000)
        columns, cache = "(id int, k int, v int, w int)", "HYBRID_HASH_CACHE(TTL 60 PATH 'x')"
        for text in (
            "CREATE STREAM l(id int, k int, x int, y int)",
            f"CREATE STREAM b{columns}",
            f"CREATE MUTABLE STREAM m{columns} PRIMARY KEY id",
            f"CREATE STREAM v{columns} PRIMARY KEY id SETTINGS mode='versioned_kv'",
            f"CREATE STREAM c{columns} PRIMARY KEY id SETTINGS mode='changelog_kv'",
            f"CREATE DICTIONARY t{columns} PRIMARY KEY id SOURCE(TIMEPLUS(STREAM 'm')) LAYOUT({cache})",
        ):
            connection.execute(text)
        views, there = [], {}
        for step in range(7):
            if step < 3:
                views.append(Views(rng, connection, f"v{step}", TIMEPLUS[rng.choice(list(TIMEPLUS))], "table({})"))
            for _ in range(rng.choice([2, 4, 6])):
                name = rng.choice("lllbbmmmvvc")
                row = (small(rng), small(rng), small(rng), small(rng))
                if name == "l":
                    at = f"'{timestamp(now_s + small(rng, -40, 0))}'"
                    connection.execute(
                        f"INSERT INTO l(id, k, x, y, _tp_time) VALUES ({', '.join(map(str, row))}, {at})"
                    )
                elif name == "c":
                    old = there.pop(row[0], None)
                    if old is not None:
                        connection.execute(f"INSERT INTO c(id, k, v, w, _tp_delta) VALUES {(*old, -1)}")
                    if old is None or rng.random() < 0.7:
                        there[row[0]] = row
                        connection.execute(f"INSERT INTO c(id, k, v, w, _tp_delta) VALUES {(*row, 1)}")
                else:
                    connection.execute(f"INSERT INTO {name}(id, k, v, w) VALUES {row}")
            now_s += rng.choice([0, 10, 30])
            harness.set_clock(now_s * 1_000_000)
            connection.flush()
            for view in views:
                view.check()


@pytest.mark.parametrize("seed", mostly_slow(range(40), 1, 5))
def test_timeplus(seed):
    run_timeplus(seed)


@pytest.mark.parametrize("seed", mostly_slow(range(20), 1, 3))
def test_sqlstream(seed):
    rng = random.Random(seed)
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess", parallelism=rng.choice([1, 3])) as connection:
        connection.execute("CREATE STREAM s (id INTEGER, k INTEGER, x INTEGER, y INTEGER)")
        connection.execute("SET dialect = 'risingwave'")
        connection.execute("CREATE TABLE d (a INT PRIMARY KEY, v INT, w INT)")
        views, rows, count = [], {}, 0
        for step in range(6):
            for _ in range(rng.choice([1, 3])):
                connection.execute(change_keyed(rng, rows, "d", "a", ("v", "w")))
            connection.execute("SET dialect = 'sqlstream'")
            if step < 3:
                kind = SQLSTREAM[rng.choice(list(SQLSTREAM))]
                views.append(Views(rng, connection, f"v{step}", kind, prefix="SELECT STREAM"))
            for _ in range(rng.choice([0, 1, 2])):
                count += 1
                values = ", ".join(str(small(rng)) for _ in range(4))
                at = f"TIMESTAMP '2019-01-01 00:00:{count:02}'"
                connection.execute(f"INSERT INTO s (ROWTIME, id, k, x, y) VALUES ({at}, {values})")
            connection.execute("SET dialect = 'risingwave'")
            connection.flush()
            connection.execute("SET dialect = 'sqlstream'")
            for view in views:
                view.check()
            connection.execute("SET dialect = 'risingwave'")


#: Kinds of joins of topics in Lenses: the kinds of a and b, the join, and whether the result is a table.
TOPICS = {
    "looked up": ("STREAM", "TABLE", "INNER JOIN b", False),
    "waiting": ("STREAM", "TABLE", "LEFT JOIN b", False),
    "within": ("STREAM", "STREAM", "LEFT JOIN b WITHIN 2s GRACE PERIOD 0s", False),
    "tables": ("TABLE", "TABLE", "LEFT JOIN b", True),
}


@pytest.mark.parametrize("seed", mostly_slow(range(30), 1, 3))
def test_lenses(seed):
    rng = random.Random(seed)
    columns = ("a.c", "a.n", "b.c", "b.n")
    with watersmeet.connect(dialect="lenses", runtime="inprocess", parallelism=rng.choice([1, 3])) as connection:
        connection.execute("SET defaults.topic.autocreate=true")
        for name in "ab":
            connection.execute(f"CREATE TABLE {name} (_key int, c int, n int) FORMAT (INT, AVRO)")
        processors = {}
        for number, kind in enumerate(rng.sample(list(TOPICS), 2)):
            left, right, join, is_table = TOPICS[kind]
            for part in range(3):
                chosen = columns if not part else tuple(c for c in columns if rng.random() < 0.5) or ("a.c",)
                shown = ", ".join(f"{c} AS {named(c)}" for c in chosen)
                connection.execute(
                    f"WITH a AS (SELECT {left} * FROM a); WITH b AS (SELECT {right} * FROM b); "
                    f"INSERT INTO p{number}_{part} SELECT {left} {shown} FROM a {join}"
                )
                processors[number, part] = chosen, is_table
        logs, tables = {p: Counter() for p in processors}, {p: {} for p in processors}
        for step in range(6):
            for _ in range(rng.choice([1, 3])):
                name, key, at = rng.choice("ab"), small(rng, 1, 2), timestamp(START_S + 2 * step + small(rng, 0, 1))
                if rng.random() < 0.2:
                    connection.execute(f"INSERT INTO {name} (_key, _value) VALUES ({key}, NULL)")
                    continue
                values = f"({key}, {small(rng)}, {small(rng)}, TIMESTAMP '{at}')"
                connection.execute(f"INSERT INTO {name} (_key, c, n, `@time`) VALUES {values}")
            connection.flush()
            for (number, part), (chosen, is_table) in processors.items():
                shown = ", ".join(map(named, chosen))
                text = f"SELECT _key, _value IS NULL AS gone, {shown} FROM p{number}_{part}"
                log = Counter((repr(key), *row) for key, *row in connection.execute(text).fetchall())
                for key, gone, *row in (log - logs[number, part]).elements():
                    tables[number, part].pop(key, None)
                    if not gone:
                        tables[number, part][key] = tuple(row)
                logs[number, part] = log
                places = [columns.index(c) for c in chosen]
                if is_table:
                    wanted = {k: tuple(row[p] for p in places) for k, row in tables[number, 0].items()}
                    assert tables[number, part] == wanted, (seed, number, chosen)
                else:
                    wanted = Counter(
                        (k, gone, *(row[p] for p in places)) for k, gone, *row in logs[number, 0].elements()
                    )
                    assert log == wanted, (seed, number, chosen)


def test_a_key_that_is_pruned_is_found():
    """The fault that this module is about, planted again: left rows keep the columns that are read, and no others."""
    right = required._prune.dispatch(TemporalJoin)
    required._prune.register(TemporalJoin, required._prune.dispatch(Binary))
    try:
        with pytest.raises(AssertionError, match="FROM"):
            for seed in (0, 1, 5, 7):
                run_risingwave(seed, ["left", "inner", "many"])
    finally:
        required._prune.register(TemporalJoin, right)


def test_a_key_that_is_not_remembered_is_found(monkeypatch):
    monkeypatch.setattr(asof, "identity", lambda _: frozenset())
    with pytest.raises(AssertionError, match="FROM"):
        for seed in (2, 3, 4, 5):
            run_risingwave(seed, ["left", "inner", "many"])
