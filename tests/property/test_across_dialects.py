"""Random histories of one database in which all four dialects make relations and views that read each other's, against
plain Python; with restarts.

The dialect of a reader decides which part of history it reads, whatever dialect made the relation (SEMANTICS, "Where a
query begins"): Timeplus and SQLstream read only later rows of append-only relations and streams, the others all rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.property.small import small
from tests.thorough import mostly_slow

#: 1016, 116: a running query gave the pieces of a topic's history one after the other.
REGRESSIONS = [1016, 116]
SEEDS = [*REGRESSIONS, *range(6)]
_START = dt.datetime(2024, 1, 1)
_SCHEMA = """
SET dialect = 'risingwave'; CREATE TABLE acct (k int PRIMARY KEY, v int); CREATE TABLE log (k int, v int) APPEND ONLY;
SET dialect = 'timeplus'; CREATE STREAM ticks (k int, v int); CREATE MUTABLE STREAM kv (k int, v int) PRIMARY KEY k;
SET dialect = 'sqlstream'; CREATE STREAM bids (k INTEGER, v INTEGER);
SET dialect = 'lenses'; CREATE TABLE top (_key int, v int) FORMAT (INT, AVRO); SET defaults.topic.autocreate = true;
"""

Rows = Counter[tuple[int | None, int | None]]


@dataclass
class Relation:
    """What can be read: its columns k and v as they are spelled, and what it holds now.

    grows: rows never go. keyed: one row a key, by its primary key. stream: it has a ROWTIME. topic: a log, whose
    content as a table is `content`.
    """

    name: str
    k: str
    v: str
    content: Callable[[], Rows]
    grows: bool = False
    keyed: bool = False
    stream: bool = False
    topic: bool = False
    decided: Callable[[], None] | None = field(default=None, repr=False)
    """Of a view whose rows are decided when they come: takes note of what came."""


class Database:
    """Watersmeet, and what it has to show."""

    def __init__(self, path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.connection = watersmeet.connect(path, runtime="inprocess", parallelism=rng.choice([1, 3]))
        self.done: list[str] = []
        self.grown: dict[str, Rows] = {n: Counter() for n in ("log", "ticks", "BIDS", "top")}
        self.keys: dict[str, dict[int, int]] = {n: {} for n in ("acct", "kv", "top")}
        self.time = 0
        self.execute(_SCHEMA)
        self.relations = [
            Relation("acct", "k", "v", lambda: self.latest("acct"), keyed=True),
            Relation("kv", "k", "v", lambda: self.latest("kv"), keyed=True),
            Relation("log", "k", "v", lambda: Counter(self.grown["log"]), grows=True),
            Relation("ticks", "k", "v", lambda: Counter(self.grown["ticks"]), grows=True),
            Relation("BIDS", "K", "V", lambda: Counter(self.grown["BIDS"]), grows=True, stream=True),
            Relation("top", "_key", "v", lambda: self.latest("top"), keyed=True, topic=True),
        ]
        self.views: list[Relation] = []

    def execute(self, text: str) -> None:
        self.done.append(text)
        self.connection.execute(text)

    def latest(self, name: str) -> Rows:
        return Counter(self.keys[name].items())

    # -- what changes

    def change(self) -> None:
        rng = self.rng
        name = rng.choice(["acct", "kv", "log", "ticks", "BIDS", "top"])
        rows = [(rng.randrange(4), rng.randrange(9)) for _ in range(rng.randint(1, 3))]
        if name == "BIDS":
            self.time += rng.randrange(3)
            listed = ", ".join(f"(TIMESTAMP '{_START + dt.timedelta(seconds=self.time)}', {k}, {v})" for k, v in rows)
            self.execute(f"SET dialect = 'sqlstream'; INSERT INTO bids (ROWTIME, k, v) VALUES {listed}")
        elif name in ("acct", "kv") and rng.random() < 0.3:
            k = rng.randrange(4)
            self.keys[name].pop(k, None)
            self.execute(f"SET dialect = 'risingwave'; DELETE FROM {name} WHERE k = {k}")
            return
        elif name == "top":
            gone = {k for k, _ in rows if rng.random() < 0.2}
            rows = [(k, None if k in gone else v) for k, v in rows]
            self.execute(
                "SET dialect = 'lenses'; "
                + "; ".join(
                    f"INSERT INTO top (_key, _value) VALUES ({k}, NULL)"
                    if v is None
                    else f"INSERT INTO top VALUES ({k}, {v})"
                    for k, v in rows
                )
            )
        else:
            if name == "log" and rng.random() < 0.3:
                rows.append((None, rng.choice([None, 1])))
            listed = ", ".join(f"({'NULL' if k is None else k}, {'NULL' if v is None else v})" for k, v in rows)
            self.execute(
                f"SET dialect = '{rng.choice(['risingwave', 'timeplus'])}'; INSERT INTO {name} (k, v) VALUES {listed}"
            )
        if name in self.grown:
            self.grown[name].update(rows)
        for k, v in rows if name in self.keys else ():
            if v is None:
                self.keys[name].pop(k, None)
            else:
                self.keys[name][k] = v

    # -- what reads

    def make(self) -> None:
        """A view of some dialect over what there is."""
        number = len(self.views)
        made = getattr(
            self,
            self.rng.choice(["risingwave", "risingwave", "timeplus", "timeplus", "sqlstream", "sqlstream", "lenses"]),
        )(f"m{number}")
        if made is not None:
            self.views.append(made)
            self.relations.append(made)

    def pick(self, fits: Callable[[Relation], bool] = lambda _: True) -> Relation:
        return self.rng.choice([r for r in self.relations if fits(r)])

    def since_now(self, relation: Relation) -> Callable[[], Rows]:
        """What comes to something that only grows from now on."""
        before = relation.content()
        return lambda: relation.content() - before

    def all_of(self, relation: Relation) -> Callable[[], Rows]:
        """As RisingWave reads it: of a topic every record."""
        return (lambda: Counter(self.grown[relation.name])) if relation.topic else relation.content

    def risingwave(self, name: str) -> Relation:
        rng = self.rng
        one, other = (self.pick(lambda r: not r.topic or r.name == "top") for _ in range(2))
        left, right = self.all_of(one), self.all_of(other)
        kind = rng.choice(["filter", "group", "join", "left"])
        head = f"SET dialect = 'risingwave'; CREATE MATERIALIZED VIEW {name} AS SELECT "
        if kind == "filter":
            self.execute(f"{head}{one.k} AS k, v FROM {one.name} WHERE v > 2")
            return Relation(name, "k", "v", lambda: chosen(left()), grows=one.grows or one.topic)
        if kind == "group":
            self.execute(f"{head}{one.k} AS k, sum(v) AS v FROM {one.name} GROUP BY {one.k}")
            return Relation(name, "k", "v", lambda: summed(left()))
        word = "LEFT JOIN" if kind == "left" else "JOIN"
        self.execute(
            f"{head}a.{one.k} AS k, b.v AS v FROM {one.name} AS a {word} {other.name} AS b ON a.{one.k} = b.{other.k}"
        )
        grows = kind == "join" and all(r.grows or r.topic for r in (one, other))
        return Relation(name, "k", "v", lambda: joined(left(), right(), left=kind == "left"), grows=grows)

    def timeplus(self, name: str) -> Relation:
        rng = self.rng
        kind = rng.choice(["filter", "group", "join", "look up", "keyed"])
        head = f"SET dialect = 'timeplus'; CREATE MATERIALIZED VIEW {name} AS SELECT "
        one = self.pick(
            lambda r: (
                r.keyed and not r.topic if kind == "keyed" else not r.topic and (r.grows or kind in ("filter", "group"))
            )
        )
        left = self.since_now(one) if one.grows else one.content
        on = f"ON a.{one.k} = b."
        if kind == "filter":
            self.execute(f"{head}{one.k} AS k, {one.v} AS v FROM {one.name} WHERE {one.name}.{one.v} > 2")
            return Relation(name, "k", "v", lambda: chosen(left()), grows=one.grows)
        if kind == "group":
            self.execute(f"{head}{one.k} AS k, max({one.v}) AS v FROM {one.name} GROUP BY {one.name}.{one.k}")
            return Relation(name, "k", "v", lambda: greatest(left()))
        other = self.pick(lambda r: r.grows if kind == "join" else r.keyed and not r.topic)
        right = self.since_now(other) if kind == "join" else other.content
        text = f"{head}a.{one.k} AS k, b.{other.v} AS v FROM {one.name} AS a INNER JOIN {other.name} AS b {on}{other.k}"
        self.execute(text)
        if kind != "look up":
            return Relation(name, "k", "v", lambda: joined(left(), right()), grows=kind == "join")
        seen: Rows = Counter()
        found: Rows = Counter()

        def decide() -> None:
            now = left()
            found.update(joined(now - seen, right()))
            seen.clear()
            seen.update(now)

        return Relation(name, "k", "v", lambda: Counter(found), grows=True, decided=decide)

    def sqlstream(self, name: str) -> Relation:
        kind = self.rng.choice(["filter", "stream", "enriched", "join"])
        head = f"SET dialect = 'sqlstream'; CREATE MATERIALIZED VIEW {name} AS SELECT "
        if kind in ("stream", "enriched"):
            one = self.pick(lambda r: r.stream)
            left = self.since_now(one)
            if kind == "stream":
                self.execute(f"{head}STREAM ROWTIME, k, v FROM {one.name} WHERE v > 2")
                return Relation(name.upper(), "K", "V", lambda: chosen(left()), grows=True, stream=True)
            other = self.pick(lambda r: not r.stream and not r.topic)
            still = other.content()
            self.execute(
                f"{head}STREAM a.ROWTIME, a.k AS k, b.v AS v FROM {one.name} AS a LEFT JOIN {other.name} AS "
                f"b ON a.k = b.k"
            )
            return Relation(name.upper(), "K", "V", lambda: joined(left(), still, left=True), grows=True, stream=True)
        one, other = (self.pick(lambda r: not r.stream and not r.topic) for _ in range(2))
        if kind == "filter":
            self.execute(f"{head}k, v FROM {one.name} WHERE v > 2")
            return Relation(name.upper(), "K", "V", lambda: chosen(one.content()), grows=one.grows)
        self.execute(f"{head}a.k AS k, b.v AS v FROM {one.name} AS a JOIN {other.name} AS b ON a.k = b.k")
        return Relation(
            name.upper(), "K", "V", lambda: joined(one.content(), other.content()), grows=one.grows and other.grows
        )

    def lenses(self, name: str) -> Relation:
        rng = self.rng
        one, other = (self.pick(lambda r: r.keyed) for _ in range(2))
        head = f"SET dialect = 'lenses'; INSERT INTO {name} SELECT TABLE "
        if rng.random() < 0.5:
            self.execute(f"{head}v FROM {one.name} WHERE v > 2")
            return Relation(name, "_key", "v", lambda: chosen(one.content()), keyed=True, topic=True)
        left = rng.random() < 0.5
        self.execute(f"{head}b.v AS v FROM {one.name} AS a {'LEFT' if left else 'INNER'} JOIN {other.name} AS b")
        return Relation(
            name, "_key", "v", lambda: joined(one.content(), other.content(), left=left), keyed=True, topic=True
        )

    # -- what is right

    def flush(self) -> None:
        self.execute("FLUSH")
        for view in self.views:
            if view.decided:
                view.decided()

    def check(self) -> None:
        self.flush()
        for view in self.views:
            expected, found = view.content(), self.content(view)
            assert found == expected, (
                f"{view.name}: missing {expected - found}, surplus {found - expected}\n" + ";\n".join(self.done)
            )

    def content(self, view: Relation) -> Rows:
        if not view.topic:
            return Counter(
                self.connection.execute(f"SET dialect = 'risingwave'; SELECT k, v FROM {view.name}").fetchall()
            )
        self.connection.execute("SET dialect = 'lenses'")
        query = self.connection.start(f"SELECT TABLE _key, v FROM {view.name}")
        table, diff = query.take()
        query.close()
        assert (diff > 0).all()
        return Counter(
            tuple(r.values()) for r, times in zip(table.to_pylist(), diff.tolist(), strict=True) for _ in range(times)
        )

    def reopen(self) -> None:
        self.done.append("-- reopened")
        self.connection.close()
        self.connection = watersmeet.connect(self.path, runtime="inprocess")
        self.connection.execute("SET dialect = 'lenses'; SET defaults.topic.autocreate = true")


def chosen(rows: Rows) -> Rows:
    return Counter({r: n for r, n in rows.items() if r[1] is not None and r[1] > 2})


def grouped(rows: Rows) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for (k, v), n in rows.items():
        found.setdefault(k, []).extend([v] * n if v is not None else [])
    return found


def summed(rows: Rows) -> Rows:
    return Counter({(k, sum(values) if values else None): 1 for k, values in grouped(rows).items()})


def greatest(rows: Rows) -> Rows:
    return Counter({(k, max(values, default=None)): 1 for k, values in grouped(rows).items()})


def joined(one: Rows, other: Rows, *, left: bool = False) -> Rows:
    """Of each pair with equal k the left k and the right v; left: rows without partner, too."""
    found: Rows = Counter()
    for (k, _), n in one.items():
        met = [(v, m) for (o, v), m in other.items() if k is not None and o == k]
        for v, m in met or ([(None, 1)] if left else []):
            found[k, v] += n * m
    return found


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 0, len(REGRESSIONS)))
def test_histories(seed, tmp_path):
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        if seed % 3 == 2:
            stack.enter_context(small())
        database = Database(tmp_path / "db", rng)
        stack.callback(lambda: database.connection.close())  # noqa: PLW0108 - it is opened again
        for _ in range(rng.randint(14, 30)):
            if len(database.views) < 9 and rng.random() < 0.4:
                database.make()  # what was committed is from before, whether views show it yet or not
            database.change()
            if rng.random() < 0.4 or any(v.decided for v in database.views):
                database.check()
            if rng.random() < 0.1:
                database.reopen()
        database.check()
