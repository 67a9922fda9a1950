"""Timeplus' joins of every category on random histories, against `timeplus_rules`: TP-16, TP-17, TP-21 to TP-41, TP-50
to TP-60.

Views and running queries begin at random moments. Rows of a stream are cut into transactions and micro-batches at
random; the database is closed and opened again in between. Which of the rows that a keyed stream has when a query
starts came last is not known: no query here shows it. Times are less out of order than any range is long: what is late
to a range join (TP-31) is `test_timeplus_ranges`' business.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet
from tests.property.timeplus_rules import Both, Enriched, Live, Newest, Query, Static, Stream, Where
from tests.thorough import mostly_slow

#: 18: rows of a keyed stream that were replaced before the query started were versions of its ASOF join.
REGRESSIONS = [18]

STREAMS = {
    "l": (Stream("l", 4), "CREATE STREAM l(n int, k nullable(int), x int, at int)", "n, k, x, at"),
    "a": (Stream("a", 4), "CREATE STREAM a(id int, k nullable(int), y int, at int)", "id, k, y, at"),
    "b": (Stream("b", 3), "CREATE STREAM b(id int, k nullable(int), y int)", "id, k, y"),
    "m": (Stream("m", 3, 1), "CREATE MUTABLE STREAM m(id int, k nullable(int), y int) PRIMARY KEY id", "id, k, y"),
    "v": (
        Stream("v", 3, 1),
        "CREATE STREAM v(id int, k nullable(int), y int) PRIMARY KEY id SETTINGS mode='versioned_kv'",
        "id, k, y",
    ),
    "c": (
        Stream("c", 3, 1),
        "CREATE STREAM c(id int, k nullable(int), y int) PRIMARY KEY id SETTINGS mode='changelog_kv'",
        "id, k, y, _tp_delta",
    ),
    "d": (
        Stream("d", 4, 2),
        "CREATE MUTABLE STREAM d(id int, j int, k int, y int, INDEX i1 (k), INDEX i2 (y, k)) PRIMARY KEY (id, j)",
        "id, j, k, y",
    ),
}
TIMED = ("l", "a")  # their `at` is written to _tp_time, too


def equal(i, j):
    """Column i of the left row is column j of the right one; NULL is nothing's equal."""
    return lambda one, other: one[i] is not None and one[i] == other[j]


def both(*conditions):
    return lambda one, other: all(c(one, other) for c in conditions)


def on(*pairs):
    return both(*[equal(i, j) for i, j in pairs])


def asof(name, i, k, test, keep, *, rising):
    """An ASOF join of l's column i with y of the stream."""

    def made(s, kind):
        right = Newest(s[name], lambda r: r[1], keep, lambda r: r[2])
        sign = -1 if rising else 1
        return Enriched(
            Live(s["l"]),
            right,
            kind,
            both(equal(k, 1), lambda one, r: test(one[i], r[2])),
            nearest=lambda r: sign * r[2],
        )

    return made


def within(seconds, i=3, j=3):
    return lambda one, other: abs(one[i] - other[j]) <= seconds


def pick(*places):
    return lambda row: tuple(row[p] for p in places)


def counted(key, rows):
    values = [r[1] for r in rows if r[1] is not None]
    return (*key, len(rows), sum(values) if values else None, min(values, default=None), max(values, default=None))


LA = "l.n AS n, a.id AS id"
#: By name: the query, and what makes its reference of the streams.
QUERIES = {
    # in both directions
    "pairs": (
        f"SELECT {LA} FROM l JOIN a ON l.k = a.k",
        lambda s: Query(Both(Live(s["l"]), Live(s["a"]), "inner", on((1, 1))), pick(0, 4)),
    ),
    "left_pairs": (
        f"SELECT {LA} FROM l LEFT JOIN a ON l.k = a.k AND l.x = a.y",
        lambda s: Query(Both(Live(s["l"]), Live(s["a"]), "left", on((1, 1), (2, 2))), pick(0, 4)),
    ),
    "full_pairs": (
        f"SELECT {LA}, a.k AS k FROM l FULL JOIN a ON l.k = a.k AND l.x = a.y",
        lambda s: Query(Both(Live(s["l"]), Live(s["a"]), "full", on((1, 1), (2, 2))), pick(0, 4, 5)),
    ),
    "three": (
        "SELECT l.n AS n, a.id AS id, b.y AS y FROM l JOIN a ON l.k = a.k JOIN b ON a.y = b.y",
        lambda s: Query(
            Both(Both(Live(s["l"]), Live(s["a"]), "inner", on((1, 1))), Live(s["b"]), "inner", on((6, 2))),
            pick(0, 4, 10),
        ),
    ),
    "within": (
        f"SELECT {LA} FROM l JOIN a ON l.k = a.k AND date_diff_within(1m)",
        lambda s: Query(Both(Live(s["l"]), Live(s["a"]), "inner", both(equal(1, 1), within(60))), pick(0, 4)),
    ),
    "within_columns": (
        f"SELECT {LA} FROM l LEFT JOIN a ON l.k = a.k AND date_diff_within(20s, l._tp_time, a._tp_time) WHERE l.x > 3",
        lambda s: Query(
            Both(Live(s["l"]), Live(s["a"]), "left", both(equal(1, 1), within(20))), pick(0, 4), lambda r: r[2] > 3
        ),
    ),
    "numbers": (
        f"SELECT {LA} FROM l JOIN a ON l.k = a.k AND l.at < a.at + 10 AND l.at > a.at - 5",
        lambda s: Query(
            Both(Live(s["l"]), Live(s["a"]), "inner", both(equal(1, 1), lambda o, r: r[3] - 5 < o[3] < r[3] + 10)),
            pick(0, 4),
        ),
    ),
    "itself": (
        "SELECT a.id AS id, o.id AS other FROM a JOIN a AS o ON a.k = o.k AND date_diff_within(1m) WHERE a.y <= o.y",
        lambda s: Query(
            Both(Live(s["a"]), Live(s["a"]), "inner", both(equal(1, 1), within(60))), pick(0, 4), lambda r: r[2] <= r[6]
        ),
    ),
    "keyed": (
        "SELECT m.id AS id, v.id AS other, v.y AS y FROM m JOIN v ON m.k = v.k",
        lambda s: Query(Both(Live(s["m"]), Live(s["v"]), "inner", on((1, 1))), pick(0, 3, 5)),
    ),
    "keyed_left": (
        "SELECT m.id AS id, c.id AS other, c.y AS y FROM m LEFT JOIN c ON m.k = c.k",
        lambda s: Query(Both(Live(s["m"]), Live(s["c"]), "left", on((1, 1))), pick(0, 3, 5)),
    ),
    "keyed_full": (
        "SELECT v.id AS id, d.j AS j, d.y AS y FROM v FULL JOIN d ON v.id = d.id",
        lambda s: Query(Both(Live(s["v"]), Live(s["d"]), "full", on((0, 0))), pick(0, 4, 6)),
    ),
    "keyed_three": (
        "SELECT m.id AS id, v.y AS y, c.y AS z FROM m JOIN v ON m.k = v.k LEFT JOIN c ON v.id = c.id",
        lambda s: Query(
            Both(Both(Live(s["m"]), Live(s["v"]), "inner", on((1, 1))), Live(s["c"]), "left", on((3, 0))), pick(0, 5, 8)
        ),
    ),
    "grouped": (
        (
            "SELECT m.k AS k, count(*) AS n, sum(v.y) AS s, min(v.y) AS l, max(v.y) AS h FROM m LEFT JOIN v ON "
            "m.k = v.k GROUP BY m.k"
        ),
        lambda s: Query(Both(Live(s["m"]), Live(s["v"]), "left", on((1, 1))), pick(1, 5), grouped=counted),
    ),
    "last_of_key": (
        "SELECT e.id AS id, e.y AS y, m.y AS z FROM changelog(a, id) AS e LEFT JOIN m ON e.k = m.k",
        lambda s: Query(Both(Newest(s["a"], lambda r: r[0]), Live(s["m"]), "left", on((1, 1))), pick(0, 2, 6)),
    ),
    # enrichment
    "look_up": (
        "SELECT l.n AS n, m.id AS id, m.y AS y FROM l LEFT JOIN m ON l.k = m.k",
        lambda s: Query(Enriched(Live(s["l"]), Live(s["m"]), "left", on((1, 1))), pick(0, 4, 6)),
    ),
    "look_up_changelog": (
        "SELECT l.n AS n, c.id AS id, c.y AS y FROM l JOIN c ON l.k = c.k",
        lambda s: Query(Enriched(Live(s["l"]), Live(s["c"]), "inner", on((1, 1))), pick(0, 4, 6)),
    ),
    "look_up_last": (
        "SELECT l.n AS n, e.id AS id, e.y AS y FROM l LEFT JOIN changelog(a, id) AS e ON l.k = e.k",
        lambda s: Query(Enriched(Live(s["l"]), Newest(s["a"], lambda r: r[0]), "left", on((1, 1))), pick(0, 4, 6)),
    ),
    "look_up_grouped": (
        (
            "SELECT v.k AS k, count(*) AS n, sum(v.y) AS s, min(v.y) AS l, max(v.y) AS h FROM l JOIN v ON l.k = "
            "v.k GROUP BY v.k"
        ),
        lambda s: Query(Enriched(Live(s["l"]), Live(s["v"]), "inner", on((1, 1))), pick(5, 6), grouped=counted),
    ),
    "static": (
        "SELECT l.n AS n, t.y AS y FROM l LEFT JOIN table(m) AS t ON l.k = t.k",
        lambda s: Query(Enriched(Live(s["l"]), Static(s["m"]), "left", on((1, 1))), pick(0, 6)),
    ),
    "static_append": (
        "SELECT l.n AS n, t.y AS y FROM l JOIN table(a) AS t ON l.k = t.k",
        lambda s: Query(Enriched(Live(s["l"]), Static(s["a"]), "inner", on((1, 1))), pick(0, 6)),
    ),
    "keyed_static": (
        "SELECT m.id AS id, t.y AS y FROM m LEFT JOIN table(a) AS t ON m.k = t.k",
        lambda s: Query(Both(Live(s["m"]), Static(s["a"]), "left", on((1, 1))), pick(0, 5)),
    ),
    "changelog_static": (
        "SELECT c.id AS id, t.y AS y FROM c JOIN table(v) AS t ON c.k = t.k",
        lambda s: Query(Both(Live(s["c"]), Static(s["v"]), "inner", on((1, 1))), pick(0, 5)),
    ),
    "direct_key": (
        "SELECT l.n AS n, d.y AS y FROM l LEFT JOIN d ON l.k = d.id AND l.x = d.j SETTINGS join_algorithm = 'direct'",
        lambda s: Query(Enriched(Live(s["l"]), Live(s["d"]), "left", on((1, 0), (2, 1))), pick(0, 7)),
    ),
    "direct_prefix": (
        "SELECT l.n AS n, d.j AS j, d.y AS y FROM l JOIN d ON l.k = d.id SETTINGS join_algorithm = 'direct'",
        lambda s: Query(Enriched(Live(s["l"]), Live(s["d"]), "inner", on((1, 0))), pick(0, 5, 7)),
    ),
    "direct_index": (
        "SELECT l.n AS n, d.j AS j, d.y AS y FROM l LEFT JOIN d ON l.x = d.y SETTINGS join_algorithm = 'direct'",
        lambda s: Query(Enriched(Live(s["l"]), Live(s["d"]), "left", on((2, 3))), pick(0, 5, 7)),
    ),
    "latest": (
        "SELECT l.n AS n, a.id AS id, a.y AS y FROM l LEFT LATEST JOIN a ON l.k = a.k",
        lambda s: Query(Enriched(Live(s["l"]), Newest(s["a"], lambda r: r[1]), "left", on((1, 1))), pick(0, 4, 6)),
    ),
    "latest_two_keys": (
        "SELECT l.n AS n, v.y AS y FROM l ASOF LATEST JOIN v ON l.k = v.k AND l.x = v.id",
        lambda s: Query(
            Enriched(Live(s["l"]), Newest(s["v"], lambda r: (r[1], r[0])), "inner", on((1, 1), (2, 0))), pick(0, 6)
        ),
    ),
    "asof_ge": (
        "SELECT l.n AS n, a.id AS id, a.y AS y FROM l LEFT ASOF JOIN a ON l.k = a.k AND l.x >= a.y",
        lambda s: Query(asof("a", 2, 1, lambda x, y: x >= y, 3, rising=True)(s, "left"), pick(0, 4, 6)),
    ),
    "asof_lt": (
        "SELECT l.n AS n, v.y AS y FROM l ASOF JOIN v ON l.k = v.k AND l.x < v.y SETTINGS keep_versions = 2",
        lambda s: Query(asof("v", 2, 1, lambda x, y: x < y, 2, rising=False)(s, "inner"), pick(0, 6)),
    ),
    # several
    "pairs_looked_up": (
        "SELECT l.n AS n, a.id AS id, m.y AS y FROM l JOIN a ON l.k = a.k LEFT JOIN m ON a.y = m.id",
        lambda s: Query(
            Enriched(Both(Live(s["l"]), Live(s["a"]), "inner", on((1, 1))), Live(s["m"]), "left", on((6, 0))),
            pick(0, 4, 10),
        ),
    ),
    "looked_up_twice": (
        "SELECT l.n AS n, m.y AS y, d.y AS z FROM l LEFT JOIN m ON l.k = m.k JOIN d ON l.x = d.id",
        lambda s: Query(
            Enriched(Enriched(Live(s["l"]), Live(s["m"]), "left", on((1, 1))), Live(s["d"]), "inner", on((2, 0))),
            pick(0, 6, 10),
        ),
    ),
    "latest_then_static": (
        "SELECT l.n AS n, a.y AS y, t.y AS z FROM l LATEST JOIN a ON l.k = a.k LEFT JOIN table(v) AS t ON a.y = t.id",
        lambda s: Query(
            Enriched(
                Enriched(Live(s["l"]), Newest(s["a"], lambda r: r[1]), "inner", on((1, 1))),
                Static(s["v"]),
                "left",
                on((6, 0)),
            ),
            pick(0, 6, 10),
        ),
    ),
    "latest_below": (
        (
            "SELECT x.n AS n, m.y AS y FROM (SELECT l.n AS n, l.k AS k FROM l LATEST JOIN b ON l.k = b.k WHERE "
            "b.y > 1) AS x JOIN m ON x.k = m.k"
        ),
        lambda s: Query(
            Enriched(
                Where(Enriched(Live(s["l"]), Newest(s["b"], lambda r: r[1]), "inner", on((1, 1))), lambda r: r[6] > 1),
                Live(s["m"]),
                "inner",
                on((1, 1)),
            ),
            pick(0, 9),
        ),
    ),
}


class Case:
    """A database and the streams of the rules, side by side."""

    def __init__(self, seed, path, *, runtime="inprocess", most=9):
        self.rng, self.path, self.runtime, self.most = random.Random(seed), path, runtime, most
        self.streams = {name: Stream(s.name, s.width, s.key) for name, (s, *_) in STREAMS.items()}
        self.connection = self.connect(parallelism=self.rng.choice([1, 3]))
        self.views, self.running, self.number, self.now = {}, {}, 0, 20
        self.waiting = list(self.rng.sample(list(QUERIES), most))
        for _, statement, _ in STREAMS.values():
            self.connection.execute(statement)

    def connect(self, **options):
        return watersmeet.connect(self.path, "timeplus", runtime=self.runtime, **options)

    def start(self):
        """One more view, or query that runs."""
        name = self.waiting.pop()
        sql, made = QUERIES[name]
        self.connection.execute("FLUSH")
        if self.rng.random() < 0.7:
            self.connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
            self.views[name] = made(self.streams)
        else:
            self.running[name] = (self.connection.execute(sql), made(self.streams), Counter())

    def queries(self):
        return [*self.views.values(), *(q for _, q, _ in self.running.values())]

    def row(self, stream):
        rng = self.rng
        self.number += 1
        if stream.name == "d":
            return (rng.randrange(5), rng.randrange(3), rng.randrange(5), rng.randrange(6))
        first = self.number if stream.name == "l" else rng.randrange(6)
        values = (first, rng.choice([None, 0, 1, 1, 2, 3]), rng.randrange(6))
        self.now += rng.randrange(6)
        return (*values, self.now - rng.randrange(18)) if stream.width == 4 else values

    def write(self):
        """Rows of one stream, cut into statements and micro-batches at random."""
        rng = self.rng
        name = rng.choice([*STREAMS, "l", "l", "a"])
        stream = self.streams[name]
        rows = [(self.row(stream), -1 if name == "c" and rng.random() < 0.3 else 1) for _ in range(rng.randint(1, 5))]
        for row, sign in rows:
            stream.write(row, sign)
            for query in self.queries():
                query.part.told(stream, row, sign)
        cuts = sorted(rng.sample(range(1, len(rows)), rng.randint(0, len(rows) - 1)))
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            self.insert(name, rows[start:end])
            if rng.random() < 0.3:
                self.connection.execute("FLUSH")
        self.connection.execute("FLUSH")

    def insert(self, name, rows):
        columns = STREAMS[name][2] + (", _tp_time" if name in TIMED else "")
        texts = []
        for row, sign in rows:
            parts = ["NULL" if v is None else str(v) for v in row]
            parts += [str(sign)] if name == "c" else []
            parts += [f"'2024-01-01 00:{row[3] // 60:02d}:{row[3] % 60:02d}'"] if name in TIMED else []
            texts.append(f"({', '.join(parts)})")
        self.connection.execute(f"INSERT INTO {name}({columns}) VALUES {', '.join(texts)}")

    def restart(self):
        """What runs ends with its connection; views go on."""
        self.running = {}
        self.connection.close()
        self.connection = self.connect()

    def check(self, moment):
        for name, query in self.views.items():
            found = Counter(self.connection.execute(f"SELECT * FROM table({name})").fetchall())
            assert found == query.rows(), (moment, name)
        for name, (cursor, query, rows) in self.running.items():
            signed = cursor.description[-1][0] == "_tp_delta"
            for row in cursor.fetchall():
                rows[row[:-1] if signed else row] += row[-1] if signed else 1
            assert {r: n for r, n in rows.items() if n} == query.rows(), (moment, name, "running")


def check(seed, path, steps=14, **options):
    """One random case."""
    case = Case(seed, path, **options)
    try:
        for name in STREAMS:
            rows = [(i, i, i, i) if name in ("l", "a", "d") else (i, i, i) for i in range(case.rng.randint(0, 3))]
            for row in rows:
                case.streams[name].write(row)
            if rows:
                case.insert(name, [(r, 1) for r in rows])
        for _ in range(case.most - 3):
            case.start()
        for step in range(steps):
            if case.rng.random() < 0.1:
                case.restart()
            case.write()
            case.check(step)
        while case.waiting:
            case.start()
        for step in range(steps, steps + 4):
            case.write()
            case.check(step)
    finally:
        case.connection.close()


@pytest.mark.parametrize(
    "seed", mostly_slow([*REGRESSIONS, *(s for s in range(24) if s not in REGRESSIONS)], len(REGRESSIONS) + 1)
)
def test_joins(seed, tmp_path):
    check(seed, tmp_path / "db")


@pytest.mark.spark
@pytest.mark.slow
def test_joins_on_spark(tmp_path):
    check(901, tmp_path / "db", steps=5, runtime="spark", most=6)
