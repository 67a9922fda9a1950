"""Arrangements of one view that joins of others read. Covers RA-33, RW-56."""

from __future__ import annotations

import random
from dataclasses import replace

import duckdb
import pytest
from tests.algebra_to_sql import to_sql
from tests.circuit_to_sql import run
from tests.thorough import mostly_slow
from tests.trees import catalog_of, group, join, project, relation, scan, sink_of, where
from tests.unit.planner.test_random_trees import Trees, content

from watersmeet.catalog import Index, MaterializedView
from watersmeet.circuit.operators import Arrange
from watersmeet.errors import Error
from watersmeet.planner import assemble, compile_view, explain

COLUMNS = "k int, x int, y int, w bigint"
DIM = relation("d", COLUMNS, key=("k",))
CATALOG = catalog_of(relation("a", COLUMNS), relation("b", COLUMNS), DIM)
a, b, d = (scan(n, COLUMNS) for n in "abd")


class Views:
    """Views compiled one after the other, as a database does it."""

    def __init__(self, buckets=3, catalog=CATALOG):
        self.buckets = buckets
        self.catalog = catalog
        self.plans = {}

    def add(self, name, tree, **options):
        ops = compile_view(tree, sink_of(tree, name), self.plans, catalog=self.catalog, **options)
        self.plans[name] = ops
        return {o.id for o in ops if isinstance(o, Arrange)}

    @property
    def circuit(self):
        return assemble(self.plans.values(), self.buckets)

    def held(self):
        """The columns of all arrangements of d, in order of their making."""
        found = [o for o in self.circuit.operators if isinstance(o, Arrange)]
        scans = {o.id: o for o in self.circuit.operators}
        result = []
        for o in found:
            source = o
            while source.inputs:
                source = scans[source.inputs[0]]
            if source.kind == "scan" and source.relation_id == "d":
                result.append(source.names)
        return result


def named(left, kind="inner", keys="{0}.k = d.k", column="d.x", of=None, residual=None):
    name = left.columns[0].id[0] if of is None else of
    return project(join(left, d, kind, keys.format(name), residual), o=f"{name}.y", n=column)


@pytest.mark.parametrize("buckets", [1, 3])
def test_the_second_want_of_other_columns_makes_an_arrangement_for_all(buckets):
    views = Views(buckets)
    first = views.add("v1", named(a))
    assert views.held() == [("k", "x")], "a lone view keeps what it needs"
    assert len(first & views.add("v2", named(b))) == 1, "covered: read by both"
    views.add("v3", named(a, column="d.y"))
    assert views.held() == [("k", "x"), ("k", "x", "y", "w")]
    views.add("v4", named(b, column="d.w"))
    views.add("v5", named(b, "left", column="d.y"))
    views.add("v6", project(join(b, d, "anti", "b.k = d.k"), o="b.x"))
    assert len(views.held()) == 2


@pytest.mark.parametrize("buckets", [1, 3])
def test_an_index_holds_all_of_its_columns_from_the_beginning(buckets):
    index = replace(relation("i", COLUMNS, kind=Index), depends_on=("d",), index_columns=("y", "x"))
    views = Views(buckets, catalog_of(*CATALOG.relations.values(), index))
    views.add("v1", named(a, keys="{0}.x = d.x, {0}.y = d.y", column="d.k"))
    views.add("v2", named(b, keys="{0}.k = d.y, {0}.x = d.x", column="d.w"))
    assert views.held() == [("k", "x", "y", "w")], "whatever the order in which the key is written"
    some = replace(index, included=("k",))
    views = Views(buckets, catalog_of(*CATALOG.relations.values(), some))
    views.add("v1", named(a, keys="{0}.x = d.x, {0}.y = d.y", column="d.k"))
    assert views.held() == [("k", "x", "y")]
    views.add("v2", named(a, keys="{0}.x = d.x, {0}.y = d.y", column="d.w"))
    assert views.held() == [("k", "x", "y"), ("k", "x", "y", "w")], "the index lacks w"


@pytest.mark.parametrize("buckets", [1, 3])
def test_filters_move_above_an_arrangement_with_a_unique_key_only(buckets):
    views = Views(buckets)
    views.add("v1", named(a))
    views.add("v2", where(named(b, column="d.x"), "n > 1"))
    assert len(views.held()) == 1
    views.add("v3", named(a, keys="{0}.x = d.x", column="d.k"))
    views.add("v4", where(named(b, keys="{0}.x = d.x", column="d.k"), "n > 1"))
    assert len(views.held()) == 3, "many rows of d may have one x: those that pass are kept apart"


def test_sharing_can_be_turned_off():
    views = Views()
    views.add("v1", named(a), share=False)
    views.add("v2", named(a, column="d.y"), share=False)
    views.add("v3", named(b, column="d.y"), share=False)
    assert views.held() == [("k", "x"), ("k", "y")], "equal ones are one in any case"


def test_a_view_is_arranged_once_for_all_that_join_with_it():
    views = Views()
    views.add("m", group(a, "a.k", "sum(a.x)"))
    m = scan("m", "o0 int, o1 bigint")
    first = views.add("v1", project(join(b, m, "inner", "b.k = m.o0"), o="b.x", s="m.o1"))
    second = views.add("v2", project(join(d, m, "left", "d.k = m.o0"), o="d.x", s="m.o1"))
    [shared] = first & second
    [reader] = {o.id for o in views.circuit.operators if o.id in views.circuit.by_id[shared].inputs}
    assert reader == views.plans["m"][-2].id, "where the groups are already, without an exchange"


def test_explain_says_who_shares():
    views = Views()
    views.add("v1", named(a))
    catalog = catalog_of(*CATALOG.relations.values(), relation("v1", "o0 int", MaterializedView))
    tree = named(b)
    lines = explain(tree, sink_of(tree, "v2"), catalog, views.plans, 3)
    assert [line.rsplit("; ", 1)[1] for line in lines if line.startswith("  arrange-") and "key [d.k]" in line] == [
        "shared with v1"
    ]


def filled(rng):
    connection = duckdb.connect(config={"threads": 1})
    for name in "abcd":
        connection.execute(f"CREATE TABLE {name} (k INT, x INT, y INT, w BIGINT)")
        keys = rng.sample(["0", "1", "2", "3", "4"], 4) if name in "cd" else None
        for i in range(rng.choice([2, 4])):
            values = [
                keys[i] if keys else rng.choice(["NULL", "0", "1", "2"]),
                *(rng.choice(["NULL", "0", "1", "2"]) for _ in range(3)),
            ]
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join(values)})")
    return connection


class Mixes(Trees):
    """Joins and filters over few relations, so that views meet at the same keys."""

    names = "abc"

    def tree(self, depth):
        if depth == 0:
            return super().tree(0) if self.rng.random() < 0.1 else self.some()
        left, right = self.tree(self.rng.randrange(depth)), self.some()
        if self.rng.random() < 0.3:
            left, right = right, left
        keys = [
            f'"{self.rng.choice(self.ints(left)[:2])}" {op} "{self.rng.choice(self.ints(right)[:2])}"'
            for op in self.rng.choice([["="], ["="], ["=="], ["=", "="]])
        ]
        residual = self.condition(left, right) if self.rng.random() < 0.3 else None
        node = join(
            left, right, self.rng.choice(["inner", "left", "right", "full", "semi", "anti"]), ", ".join(keys), residual
        )
        return group(node, self.ref(node), "count(*)", self.next("g") + "_") if self.rng.random() < 0.15 else node

    def some(self):
        name = self.rng.choice("acd")
        node = scan(name, COLUMNS, alias=self.next(name))
        return where(node, self.condition(node)) if self.rng.random() < 0.4 else node


@pytest.mark.parametrize("seed", mostly_slow(range(70), 3))
def test_views_that_share_give_the_answer(seed):
    """Random views one after the other; each is checked in the circuit of all, in which rows are in their buckets."""
    rng = random.Random(seed)
    catalog = catalog_of(
        relation("a", COLUMNS),
        relation("c", COLUMNS, key=("k",)),
        DIM,
        *[replace(relation("i", COLUMNS, kind=Index), depends_on=("a",), index_columns=("x",))] * (seed % 2),
    )
    connection = filled(rng)
    views = {n: Views(n, catalog) for n in (1, 3)}
    trees = {}
    for number in range(6):
        tree = Mixes(rng).tree(rng.choice([1, 2, 2, 3]))
        try:
            for each in views.values():
                each.add(f"v{number}", tree)
        except Error as refused:
            assert refused.condition == "JOIN_WITHOUT_EQUALITY"
            continue
        trees[f"v{number}"] = tree
    for each in views.values():
        circuit = each.circuit
        for name, tree in trees.items():
            assert run(circuit, connection, name) == content(connection, tree), to_sql(tree)


def test_joins_by_one_key_are_one_operator():
    """The multi-way part of RA-34: no rows in between, whatever the tree's shape."""
    c = scan("c", COLUMNS)
    chain = join(join(join(a, b, "inner", "a.k = b.k"), c, "inner", "b.k = c.k"), d, "inner", "a.k = d.k", "a.x < c.x")
    bushy = join(join(a, b, "inner", "a.k = b.k"), join(c, d, "inner", "c.k = d.k"), "inner", "b.k = c.k")
    for tree in (chain, bushy):
        views = Views()
        views.add("v", project(tree, o="a.x", p="d.y"))
        kinds = [o.kind for o in views.circuit.operators]
        assert kinds.count("multijoin") == 1
        assert kinds.count("join") == 0
        assert kinds.count("arrange") == 4
        assert views.circuit.last_stage == 1
    other = join(join(join(a, b, "inner", "a.k = b.k"), c, "inner", "b.k = c.k"), d, "inner", "c.x = d.x")
    views = Views()
    views.add("v", project(other, o="a.x"))
    kinds = [o.kind for o in views.circuit.operators]
    assert (kinds.count("multijoin"), kinds.count("join")) == (1, 1)
    left = join(join(a, b, "inner", "a.k = b.k"), c, "left", "b.k = c.k")
    views.add("w", project(left, o="a.x"))
    assert [o.kind for o in views.plans["w"]].count("join") == 2
