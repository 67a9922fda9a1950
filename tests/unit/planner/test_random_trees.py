"""Random trees mean the same after the rewrites, and as circuits of any number of buckets. DuckDB is the judge."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import duckdb
import pytest
from tests import circuit_in_kernel, reference
from tests.algebra_to_sql import to_sql
from tests.circuit_to_sql import run
from tests.moments import CLOCK, START
from tests.thorough import mostly_slow
from tests.trees import (
    arrivals,
    as_of,
    asof,
    change_log,
    e,
    group,
    join,
    keys_of,
    late_row_filter,
    moved,
    order_of,
    project,
    recent,
    records,
    scan,
    sink_of,
    temporal,
    timed,
    topn,
    union,
    unnest,
    values,
    where,
    window,
)

from watersmeet.algebra.nodes import Column, Cut, Project, Repartition, TimeFilter, TopN, Union
from watersmeet.algebra.rewrites import RULES, rewrite
from watersmeet.algebra.trees import exactly, read
from watersmeet.algebra.watermarks import watermarks
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import SEQ_ROW_BITS
from watersmeet.errors import Error
from watersmeet.kernel.operators import STATEFUL
from watersmeet.planner import assemble, compile_view
from watersmeet.planner.distribution import StateDistributions
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import INTEGER, TIMESTAMP

KINDS = ("inner", "inner", "left", "right", "full", "semi", "anti")


COLUMNS = "k int, x int, y int, w bigint"
VERSIONED = f"{COLUMNS}, ts timestamp"


def database(rng):
    """Tables at two moments: rows of a, b and c come and go, those of d and e only come; f has a key and times."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(f"CREATE SCHEMA {START}")
    for name in "abcde":
        old, gone, new = (
            [tuple(rng.choice(["NULL", "0", "1", "2", "3"]) for _ in range(4)) for _ in range(rng.choice([0, 3, 6, 9]))]
            for _ in range(3)
        )
        kept = old + (gone if name in "de" else [])
        ages = iter(rng.sample(range(100), 100))
        came = [(*row, "-1", str(-next(ages))) for row in old + gone]
        filled(connection, f'{START}."{name}"', old + gone)
        filled(connection, f'{START}."{name}@came"', came, ", _epoch BIGINT, _seq BIGINT")
        filled(connection, f'main."{name}"', kept + new)
        later = new + ([] if name in "de" else [tuple(rng.choice("0123") for _ in range(4))])
        filled(
            connection,
            f'main."{name}@came"',
            came + [(*row, "-2", str(-next(ages))) for row in later],
            ", _epoch BIGINT, _seq BIGINT",
        )
    keyed(connection, rng)
    return connection


def keyed(connection, rng):
    """The table f: random rows, then transactions that insert, replace and delete."""

    def row(key):
        time = rng.choice(["NULL", *(f"make_timestamp({n})" for n in range(5))])
        return (str(key), *(rng.choice(["NULL", "0", "1", "2"]) for _ in range(3)), time)

    content = {key: row(key) for key in range(4) if rng.random() < 0.6}
    filled(connection, f'{START}."f"', list(content.values()), ", ts TIMESTAMP")
    made = []
    for number in range(rng.randrange(4)):
        for key in rng.sample(range(4), rng.randrange(1, 3)):
            old, new = content.pop(key, None), row(key)
            places = (str(number << SEQ_ROW_BITS | len(made) + i) for i in range(2))
            made += [(*old, next(places), str(number), "-1")] if old else []
            if old is None or rng.random() < 0.7:
                content[key] = new
                made.append((*new, next(places), str(number), "1"))
    filled(connection, 'main."f"', list(content.values()), ", ts TIMESTAMP")
    filled(connection, 'main."f@changes"', made, ", ts TIMESTAMP, _seq BIGINT, _transaction BIGINT, _diff BIGINT")


def filled(connection, name, rows, more=""):
    connection.execute(f"CREATE TABLE {name} (k INT, x INT, y INT, w BIGINT{more})")
    if rows:
        connection.execute(f"INSERT INTO {name} VALUES {', '.join('(' + ', '.join(row) + ')' for row in rows)}")


class Trees:
    """Makes random trees; every relation of a tree gets its own alias."""

    names = "abcdef"

    def __init__(self, rng):
        self.rng = rng
        self.number = 0

    def next(self, prefix):
        self.number += 1
        return f"{prefix}{self.number}"

    def ints(self, node):
        return [c.id for c in node.columns]

    def ref(self, node):
        return '"' + self.rng.choice(self.ints(node)) + '"'

    def expr(self, node):
        r = self.rng.random()
        if r < 0.7:
            return self.ref(node)
        if r < 0.85:
            return f"{self.ref(node)} + 1"
        return f"coalesce({self.ref(node)}, {self.ref(node)})"

    def condition(self, *nodes):
        sides = [self.rng.choice(nodes) for _ in range(2)]
        one, other = (self.expr(s) for s in sides)
        r = self.rng.random()
        if r < 0.35:
            text = f"{one} {self.rng.choice(['>', '<', '=', '<>', '<='])} {self.rng.choice(['0', '1', '2'])}"
        elif r < 0.6:
            text = f"{one} {self.rng.choice(['=', '=', '<', '<>', 'IS NOT DISTINCT FROM'])} {other}"
        elif r < 0.75:
            text = f"{one} IS {self.rng.choice(['', 'NOT '])}NULL"
        elif r < 0.85:
            text = f"({self.condition(*nodes)} OR {self.condition(*nodes)})"
        elif r < 0.93:
            text = f"NOT ({self.condition(*nodes)})"
        else:
            text = self.rng.choice([f"{one} IN (1, 2)", f"{one} BETWEEN 0 AND 2", "TRUE", "FALSE", "NULL", "1 = 1"])
        return text

    def tree(self, depth):
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            if rng.random() < 0.08:
                return values(
                    [[rng.choice([0, 1, 2]) for _ in range(2)] for _ in range(rng.choice([1, 3]))], self.next("v")
                )
            return self.scan(rng.choice(self.names))
        kind = rng.choice(
            [
                "join",
                "join",
                "join",
                "where",
                "project",
                "group",
                "union",
                "cross",
                "chain",
                "chain",
                "unnest",
                "window",
                "topn",
                "recent",
                "repartition",
                "moment",
                "moment",
                "moment",
            ]
        )
        if kind == "moment":
            made = getattr(
                self,
                rng.choice(
                    [
                        "cut",
                        "temporal",
                        "temporal",
                        "asof",
                        "arrival",
                        "as_of",
                        "log",
                        "held",
                        "late_row_filter",
                        "in_time",
                        "in_time",
                    ]
                ),
            )(depth)
            return (
                where(made, " AND ".join(self.condition(made) for _ in range(rng.choice([1, 2]))))
                if rng.random() < 0.4
                else made
            )
        if kind == "where":
            below = self.tree(depth - 1)
            return where(below, " AND ".join(self.condition(below) for _ in range(rng.choice([1, 1, 2]))))
        if kind == "project":
            return self.project(self.tree(depth - 1))
        if kind == "group":
            below = self.tree(depth - 1)
            keys = ", ".join(self.ref(below) for _ in range(rng.choice([0, 1, 1, 2])))
            calls = rng.choice(
                ["count(*)", "sum({0})", "min({0}); count({0})", "count(distinct {0})", "" if keys else "count(*)"]
            )
            return group(below, keys.replace('"', "") and keys, calls.format(self.ref(below)), self.next("g") + "_")
        if kind == "recent":
            below = self.tree(depth - 1)
            return recent(
                below, self.ref(below), rng.choice(["<", "<=", ">", ">="]), rng.choice([-1, 0, 1]), self.next("time")
            )
        if kind == "repartition":
            return Repartition(self.tree(depth - 1), 4)
        if kind == "union":
            parts = [self.tree(depth - 1) for _ in range(rng.choice([2, 2, 3]))]
            width = min(len(x.columns) for x in parts)
            return self.union([exactly(x, x.columns[:width]) for x in parts])
        if kind == "window":
            return self.window(self.tree(depth - 1))
        if kind == "topn":
            below = self.tree(depth - 1)
            return topn(
                below, self.few(below), self.total(below), rng.choice([0, 1, 2, 3, None]), rng.choice([0, 0, 1])
            )
        if kind == "unnest":
            return self.unnest(self.tree(depth - 1))
        if kind == "chain":
            return self.chain(depth)
        left, right = self.tree(depth - 1), self.tree(rng.randrange(depth))
        if kind == "cross":
            return where(
                join(left, right, "inner"), f"{self.ref(left)} = {self.ref(right)} AND {self.condition(left, right)}"
            )
        residual = (
            " AND ".join(self.condition(left, right) for _ in range(rng.choice([1, 2]))) if rng.random() < 0.5 else None
        )
        kind = rng.choice(KINDS)
        partners = (
            tuple(self.condition(left, right) for _ in range(2))
            if kind in ("left", "right", "full") and rng.random() < 0.3
            else None
        )
        return join(left, right, kind, self.keys(left, right), residual, partners=partners)

    def scan(self, name):
        return scan(name, COLUMNS, alias=self.next(name), append_only=name in "de")

    # -- what depends on when rows came

    def grown(self, depth):
        """A tree of which no row ever goes."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.3:
            return self.newest(rng.choice("abcde"))[0] if rng.random() < 0.1 else self.scan(rng.choice("de"))
        kind = rng.choice(
            [
                "where",
                "project",
                "union",
                "join",
                "unnest",
                "cut",
                "temporal",
                "arrival",
                "cut",
                "log",
                "held",
                "late_row_filter",
            ]
        )
        if kind == "cut":
            return Cut(self.grown(depth - 1), "after", 7)
        if kind in ("temporal", "arrival", "log", "late_row_filter"):
            return getattr(self, kind)(depth)
        if kind == "held":
            return self.held(depth, "")
        below = self.grown(depth - 1)
        if kind == "where":
            return where(below, self.condition(below))
        if kind in ("project", "unnest"):
            return getattr(self, kind)(below)
        other = self.grown(depth - 1)
        if kind == "join":
            return join(below, other, "inner", self.keys(below, other), self.residual(below, other))
        width = min(len(below.columns), len(other.columns))
        return self.union([exactly(x, x.columns[:width]) for x in (below, other)])

    def keys(self, left, right):
        return ", ".join(
            f"{self.ref(left)} {self.rng.choice(['=', '=', '=='])} {self.ref(right)}"
            for _ in range(self.rng.choice([1, 1, 2]))
        )

    def residual(self, *sides):
        return self.condition(*sides) if self.rng.random() < 0.3 else None

    def newest(self, name):
        """What was written to a table, and the ids of its age."""
        made = arrivals(self.scan(name), self.next("age") + "_")
        return made, [c.id for c in made.age]

    def cut(self, depth):
        if self.rng.random() < 0.5:
            return Cut(self.tree(depth - 1), "before", 7)
        return Cut(self.grown(depth - 1), "after", 7)

    def temporal(self, depth):
        """A look-up, at times of the row that came last."""
        rng = self.rng
        left, right = self.grown(depth - 1), self.tree(depth - 1)
        keys = self.keys(left, right)
        if rng.random() < 0.5:
            rows, age = self.newest(rng.choice("abcdeddee"))
            key = self.ref(rows.scan)
            right = TopN(rows, keys_of(rows, key), order_of(rows, ", ".join(f'"{a}"' for a in age)), 1)
            right = exactly(right, rows.scan.columns) if rng.random() < 0.5 else right
            keys = f"{self.ref(left)} = {key}"
        return temporal(
            left, right, rng.choice(["inner", "left"]), keys, self.residual(left, right), waits=rng.random() < 0.3
        )

    def asof(self, depth):
        rng = self.rng
        arrival = rng.random() < 0.6
        left, right = self.grown(depth - 1) if arrival else self.tree(depth - 1), self.tree(depth - 1)
        if rng.random() < 0.5:
            right, ties = self.newest(rng.choice("abcde"))
            if rng.random() < 0.5:
                key, value, own = self.ref(right), self.ref(right), rng.choice(self.ints(left))
                first, *rest = order_of(right, ", ".join([value + " desc", *(f'"{a}"' for a in ties)]))
                right = TopN(right, keys_of(right, key), (replace(first, nulls_first=rng.random() < 0.2), *rest), 2)
                if {c.id: c.type for c in left.columns}[own] == {c.id: c.type for c in right.columns}[value.strip('"')]:
                    return asof(
                        left,
                        right,
                        rng.choice(["inner", "left"]),
                        f"{self.ref(left)} = {key}",
                        rng.choice(["<", "<=", ">", ">="]),
                        (own, value.strip('"')),
                        ties,
                        self.residual(left, right),
                        arrival,
                    )
        else:
            ties = [c.id for c in right.columns]
        kinds = {c.id: c.type for c in (*left.columns, *right.columns)}
        pairs = [(a, b) for a in self.ints(left) for b in self.ints(right) if kinds[a] == kinds[b]]
        if not pairs:
            return left
        return asof(
            left,
            right,
            rng.choice(["inner", "left"]),
            self.keys(left, right),
            rng.choice(["<", "<=", ">", ">="]),
            rng.choice(pairs),
            ties,
            self.residual(left, right),
            arrival,
        )

    def arrival(self, depth):
        """A join whose rows are decided when they come."""
        kind = self.rng.choice(["left", "right", "full", "semi", "anti"])
        left = self.grown(depth - 1)
        right = self.tree(depth - 1) if kind in ("semi", "anti") else self.grown(depth - 1)
        return join(left, right, kind, self.keys(left, right), self.residual(left, right), arrival=True)

    def as_of(self, depth):
        """Rows with the versions of the keyed table that hold at a time of theirs."""
        below = self.tree(depth - 1)
        left = timed(below, self.ref(below), self.next("time"))
        right = scan("f", VERSIONED, alias=self.next("f"))
        key = right.outputs[0].id
        made = as_of(
            left,
            replace(right, key=(key,)),
            self.rng.choice(["inner", "left"]),
            f'CAST({self.ref(below)} AS INT) = "{key}"',
            left.outputs[-1].id,
            self.residual(below, exactly(right, right.outputs[:-1])),
            self.next("version") + "_",
        )
        return exactly(made, [*below.columns, *made.columns[len(left.columns) : len(left.columns) + 4]])

    def log(self, depth):
        """Changes as records; whether one is without value as a number."""
        rng = self.rng
        below = self.grown(depth - 1) if rng.random() < 0.5 else self.tree(depth - 1)
        keys = tuple(dict.fromkeys(rng.choice(self.ints(below)) for _ in range(rng.choice([1, 1, 2]))))
        if rng.random() < 0.3:
            made = change_log(below, None if rng.random() < 0.3 else keys, self.next("log") + "_")
            *columns, op, _ = made.columns
            kind = Column(self.next("op"), "op", INTEGER)
            return Project(made, (*columns, kind), (*map(read, columns), e(f'CAST("{op.id}" AS INT)')))
        made = records(below, None if rng.random() < 0.3 else keys, self.next("log") + "_")
        *columns, deleted, offset = made.columns
        number = Column(self.next("deleted"), "deleted", INTEGER)
        return Project(
            made, (*columns, number, offset), (*map(read, columns), e(f'CAST("{deleted.id}" AS INT)'), read(offset))
        )

    def held(self, depth, calls="count(*)"):
        """What the clock let out stays, whatever becomes of it.

        Which rows are the same is said of all columns: all are read.
        """
        rng = self.rng
        below = self.tree(depth - 1)
        made = recent(
            below,
            self.ref(below),
            rng.choice(["<", "<="]),
            rng.choice([-1, 0, 1]),
            self.next("time"),
            stays=True,
            untimed=rng.random() < 0.3,
        )
        return group(made, ", ".join(self.ints(made)), calls, self.next("g") + "_")

    def in_order(self, depth, *, late=False):
        """Rows that only come, but for those that are late, with their time, which has a watermark."""
        below = self.grown(depth - 1)
        made = timed(below, self.ref(below), self.next("time"))
        return late_row_filter(made, made.outputs[-1].id, moved(CLOCK, self.rng.choice([-1, 0, 0, 1])), late=late)

    def late_row_filter(self, depth):
        made = self.in_order(depth, late=self.rng.random() < 0.3)
        return exactly(made, made.columns[:-1])

    def in_time(self, depth):
        """A join of which each side forgets what is behind a watermark, at times with what is final alone."""
        rng = self.rng
        left, right = self.in_order(depth), self.in_order(depth)
        one, other = (side.columns[-1].id for side in (left, right))
        far, near = rng.choice([0, 0, 1, 2]), rng.choice([0, 0, 1, 2])
        window = rng.choice(
            [
                f'"{one}" BETWEEN "{other}" - INTERVAL {near} MICROSECOND AND "{other}" + INTERVAL {far} MICROSECOND',
                f'"{one}" >= "{other}" - INTERVAL {near} MICROSECOND',
                f'"{one}" = "{other}"',
                f'"{one}" < "{other}"',
            ]
        )
        extra = self.residual(left.input.input, right.input.input)
        made = join(
            left,
            right,
            rng.choice(KINDS),
            self.keys(left.input.input, right.input.input),
            window + (f" AND ({extra})" if extra else ""),
        )
        marks = watermarks(made)
        if marks and rng.random() < 0.6:
            column = rng.choice(sorted(marks))
            made = TimeFilter(made, column, "<", marks[column], final=True)
        elif rng.random() < 0.5:
            made = group(
                made,
                rng.choice([one] if len(made.columns) == len(left.columns) else [one, other]),
                "count(*)",
                self.next("g") + "_",
            )
            marks = watermarks(made)
            if marks:
                made = TimeFilter(made, made.columns[0].id, "<", marks[made.columns[0].id], final=True)
        return exactly(made, [c for c in made.columns if c.type != TIMESTAMP])

    def chain(self, depth):
        """Joins and a group on few columns, where the planner has exchanges to save."""
        node = self.tree(0)
        for _ in range(depth):
            other = self.tree(0)
            left = '"' + self.rng.choice([self.ints(node)[0], self.ints(node)[-4:][0], self.ref(node).strip('"')]) + '"'
            node = join(
                node,
                other,
                self.rng.choice(KINDS),
                f'{left} {self.rng.choice(["=", "=", "=", "=="])} "{self.ints(other)[0]}"',
            )
            if self.rng.random() < 0.2:
                node = self.project(node)
            if self.rng.random() < 0.3:
                node = group(node, self.ref(node), "count(*)", self.next("g") + "_")
        return node

    def few(self, below):
        return ", ".join(self.ref(below) for _ in range(self.rng.choice([0, 1, 1, 2])))

    def total(self, below):
        """An order in which only equal rows are equal: pruning changes what breaks ties."""
        columns = [f'"{i}"' for i in self.ints(below)]
        self.rng.shuffle(columns)
        return ", ".join(c + self.rng.choice(["", " desc"]) for c in columns)

    def window(self, below):
        """Window functions, at times with a condition on the first of them, which may be the number of a top-N."""
        rng = self.rng
        if rng.random() < 0.5:
            calls = rng.choice(["row_number()", "rank()", "row_number(); rank()"])
            made = window(below, self.few(below), self.total(below), calls, self.next("w") + "_")
        else:
            calls = rng.choice(["rank()", "count(*)", "sum({0})", "count({0}); dense_rank()"]).format(self.ref(below))
            frame = rng.choice([("range", None, 0), ("range", None, None), ("range", 0, None), ("groups", -1, 1)])
            order = self.ref(below) + rng.choice(["", " desc"])
            made = window(below, self.few(below), order, calls, self.next("w") + "_", frame)
        if rng.random() < 0.5:
            return made
        number = made.outputs[0].id
        condition = rng.choice(
            ["{0} <= 2", "{0} = 1", "{0} > 1 AND {0} < 4", "{0} BETWEEN 2 AND 3", "2 >= {0}", "{0} > 1"]
        ).format(f'"{number}"')
        extra = f" AND {self.condition(below)}" if rng.random() < 0.4 else ""
        found = where(made, condition + extra)
        if rng.random() < 0.5:
            return found
        return exactly(found, [c for c in found.columns if c.id != number])

    def unnest(self, below):
        rng = self.rng
        texts = [
            rng.choice(
                ["[{0}, {1}]", "CASE WHEN {0} > 1 THEN [{1}] END", "[]::INT[]", "range({0}::INT)", "[{0}, 2, NULL]"]
            ).format(self.ref(below), self.ref(below))
            for _ in range(rng.choice([1, 1, 2]))
        ]
        prefix = self.next("n") + "_"
        made = unnest(below, texts, prefix, ordinality=rng.random() < 0.4)
        if rng.random() < 0.5:
            return made
        condition = self.condition(made) if rng.random() < 0.5 else None
        return unnest(below, texts, prefix, ordinality=made.ordinality is not None, outer=True, condition=condition)

    def project(self, below):
        prefix = self.next("p") + "_"
        types = {c.id: c.type for c in below.columns}
        texts = [self.expr(below) for _ in range(self.rng.choice([1, 2, 3]))]
        return project(below, **{f"{prefix}{i}": (t, types.get(t.strip('"'), INTEGER)) for i, t in enumerate(texts)})

    def union(self, parts):
        def cast(x):
            columns = tuple(Column(self.next("q"), c.name, INTEGER) for c in x.columns)
            return Project(x, columns, tuple(read(c) for c in x.columns))

        return union(*[cast(x) for x in parts], prefix=self.next("u") + "_")


def content(connection, tree):
    return sorted(connection.execute(to_sql(tree)).fetchall(), key=repr)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 3, 2))
def test_rewrites_keep_the_result(seed):
    rng = random.Random(seed)
    for _ in range(3):
        tree = Trees(rng).tree(rng.choice([2, 3, 4]))
        connection = database(rng)
        expected = content(connection, tree)
        step = tree
        for rule in RULES:
            step = rule(step)
            assert [c.id for c in step.columns] == [c.id for c in tree.columns], rule.__name__
            assert content(connection, step) == expected, rule.__name__
        assert rewrite(rewrite(tree)).columns == rewrite(tree).columns


#: Seeds that failed.
REGRESSIONS = [118016278]


@pytest.mark.parametrize("seed", [*mostly_slow(range(40), 3, 2), *REGRESSIONS])
def test_circuits_of_any_number_of_buckets_give_the_result(seed):
    rng = random.Random(1000 + seed)
    compiled = 0
    for _ in range(3):
        tree = Trees(rng).tree(rng.choice([2, 3, 4]))
        connection = database(rng)
        for buckets in (1, 3):
            try:
                ops = compile_view(tree, sink_of(tree), {})
            except Error as refused:
                assert refused.condition == "JOIN_WITHOUT_EQUALITY"
                continue
            circuit = assemble([ops], buckets)
            assert from_json(Circuit, to_json(circuit)) == circuit
            distributions = StateDistributions(circuit.by_id)
            assert all(all(distributions.of(o).values()) for o in ops), "state that can't move to other buckets"
            assert buckets == 1 or all(circuit.stages[o.id] for o in ops if o.kind in STATEFUL), (
                "state where sources are read"
            )
            expected = content(connection, tree)
            assert run(circuit, connection, "v") == expected
            assert circuit_in_kernel.run(circuit, connection, "v", rng) == Counter(map(reference.row, expected))
            compiled += 1
    assert compiled


def test_every_kind_of_operator_occurs():
    wanted = {
        "scan",
        "constant",
        "map",
        "exchange",
        "arrange",
        "join",
        "multijoin",
        "aggregate",
        "union",
        "unnest",
        "topn",
        "timefilter",
        "window",
        "sink",
        "laterowfilter",
        "records",
        "changelog",
        "changes",
        "versions",
        "cut",
        "arrivals",
        "temporal",
        "asof",
        "arrivalasof",
        "arrivaljoin",
        "upsert",
    }
    found = set()
    for seed in range(400):
        tree = Trees(random.Random(seed)).tree(4)
        try:
            found |= {op.kind for op in compile_view(tree, sink_of(tree), {})}
        except Error:
            continue
        if found == wanted:
            break
    assert found == wanted
    assert isinstance(union(scan("a")), Union)
