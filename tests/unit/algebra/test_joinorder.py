"""The order of joins: its shape, what it saves, and that no order changes the result.

Covers RA-23, RA-24, RA-25, RA-34.
"""

from __future__ import annotations

import random

import duckdb
import pytest
from tests.algebra_to_sql import to_sql
from tests.thorough import mostly_slow
from tests.trees import group, join, project, scan, where

from watersmeet.algebra.nodes import Join, Scan
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.joinorder import connect_joins, ordered
from watersmeet.algebra.trees import walk

SEEDS = 8
a, b, c, d = (scan(n) for n in "abcd")
stream = scan("s", append_only=True)


def text(node) -> str:
    """`((a b) c)`, kinds other than inner by name, residuals with `!`."""
    if isinstance(node, Join):
        kind = "" if node.kind == "inner" else f" {node.kind}"
        return f"({text(node.left)}{kind} {text(node.right)}{'' if node.residual is None else '!'})"
    if isinstance(node, Scan):
        return node.relation_name
    return text(node.inputs[0])


def height(node) -> int:
    return max((height(i) for i in node.inputs), default=0) + isinstance(node, Join)


def chain(*keys, kind="inner"):
    node, names = a, "bcdefghijklmn"
    for name, key in zip(names, keys):
        node = join(node, scan(name), kind, key)
    return node


@pytest.mark.parametrize(("tree", "order", "expected"), [
    (chain("a.k = b.k", "b.k = c.k", "c.k = d.k"), "bushy", "((a b) (c d))"),
    (chain("a.k = b.x", "b.k = c.x", "c.k = d.x"), "bushy", "((a b) (c d))"),
    (chain("a.k = b.k", "b.k = c.k", "c.k = d.k"), "left-deep", "(((a b) c) d)"),
    (chain("a.k = b.k", "b.k = c.k", "c.k = d.k"), "written", "(((a b) c) d)"),
    (chain("a.k = b.k", "a.x = c.x", "a.k = d.k"), "left-deep", "(((a b) d) c)"),  # equal keys are neighbours
    (chain("a.k = b.k", "a.x = c.x", "a.k = d.k"), "written", "(((a b) c) d)"),
    (chain("a.k = b.k", "a.x = c.x", "a.y = d.y"), "bushy", "(((a b) c) d)"),  # a star has no lower tree
    (join(join(a, b, "inner", "a.k = b.k"), join(c, d, "inner", "c.k = d.k"), "inner", "a.x = c.x"), "written",
      "((a b) (c d))"),
    (where(join(join(a, b, "inner"), c, "inner"), "a.x = c.x AND b.y = c.y"), "written", "((a c) b)"),
    (where(join(join(join(a, b, "inner"), c, "inner"), d, "inner"), "a.k = b.k AND c.k = a.k AND d.k = a.k"), "bushy",
      "((a b) (c d))"),
    (where(join(join(a, b, "inner", "a.k = b.k"), c, "inner", "b.x = c.x"), "a.y + b.y + c.y > 3"), "bushy",
      "((a b) c!)"),
    (group(chain("a.k = b.k", "a.x = c.x"), "a.k"), "bushy", "((a c) b)"),  # the groups are where the last join is
    (group(chain("a.k = b.k", "a.x = c.x"), "c.x"), "bushy", "((a b) c)"),
    # the fence stays, k comes last
    (join(chain("a.k = b.k", "a.x = c.x"), d, "semi", "a.k = d.k"), "bushy", "(((a c) b) semi d)"),
    (join(join(a, b, "left", "a.k = b.k"), c, "inner", "a.x = c.x"), "bushy", "((a left b) c)"),
    # past the fence
    (group(join(join(a, b, "left", "a.k = b.k"), c, "inner", "a.x = c.x"), "a.k"), "bushy", "((a c) left b)"),
    # a fence costs nothing here
    (join(chain("a.k = b.k", "a.k = c.k"), d, "anti", "a.k = d.k"), "bushy", "(((a b) c) anti d)"),
    (chain("a.k = b.k", "a.k = c.k", "a.k = d.k", kind="left"), "bushy", "(((a left b) left c) left d)"),
    (chain("a.k = b.k", "b.x = c.k", "c.x = d.k", kind="left"), "bushy", "(((a left b) left c) left d)"),
    # one exchange less
    (chain("a.k = b.k", "a.x = c.k", "a.k = d.k", kind="left"), "bushy", "(((a left c) left b) left d)"),
    (chain("a.k = b.k", "a.x = c.k", "a.k = d.k", kind="left"), "written", "(((a left b) left c) left d)"),
    (join(join(a, stream, "left", "a.k = s.k"), c, "left", "a.k = c.k"), "bushy", "((a left c) left s)"),
    (join(join(stream, a, "inner", "s.k = a.k"), b, "inner", "s.k = b.k"), "left-deep", "((a b) s)"),
    (join(join(a, b, "left", "a.k = b.k"), c, "inner", "b.y == c.y"), "bushy", "((a left b) c)"),
    (join(join(a, b, "full", "a.k = b.k"), c, "left", "a.k = c.k"), "bushy", "((a full b) left c)"),
    (join(project(join(a, b, "inner", "a.k = b.k"), p="a.x", q="b.x"), join(c, d, "inner", "c.k = d.k"), "inner",
      "p = c.x"),
     "bushy", "((a b) (c d))"),
])  # fmt: skip
def test_the_order(tree, order, expected):
    assert text(rewrite(tree, order)) == expected


def test_many_inputs_are_as_low_as_few():
    keys = [f"{one}.k = {other}.x" for one, other in zip("abcdefghijkl", "bcdefghijklm")]
    many = chain(*keys)
    assert height(connect_joins(many)) == 4, "13 inputs"
    assert height(ordered(many, "left-deep")) == 12
    assert all(j.keys for j in walk(connect_joins(many)) if isinstance(j, Join))
    star = chain(*[f"a.k = {n}.x" for n in "bcdefghijklm"])
    assert height(connect_joins(star)) == 4, "one key class connects all"


def test_two_columns_of_one_input_in_a_class_are_compared_there():
    tree = rewrite(where(join(join(a, b, "inner"), c, "inner"), "a.k = b.k AND a.x = b.k AND c.k = a.k"))
    assert all(len(j.keys) == 1 for j in walk(tree) if isinstance(j, Join))
    assert '"a.k" = "a.x"' in to_sql(tree)


def test_integers_of_different_widths_are_one_class():
    wide = scan("b", "k bigint, x int")
    tree = connect_joins(join(join(a, wide, "inner", "a.k = b.k"), c, "inner", "a.k = c.k"))
    assert all(j.keys for j in walk(tree) if isinstance(j, Join))


class Graphs:
    """Random trees of joins of few values, so that keys meet."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.connection = duckdb.connect(config={"threads": 1})
        for name in "abcdefg":
            self.connection.execute(f"CREATE TABLE {name} (k INT, x INT, y BIGINT)")
            rows = [
                f"({', '.join(self.rng.choice(['NULL', '0', '1', '1', '2']) for _ in range(3))})"
                for _ in range(self.rng.choice([2, 4, 5]))
            ]
            self.connection.execute(f"INSERT INTO {name} VALUES {', '.join(rows)}")

    def column(self, node):
        return '"' + self.rng.choice([c.id for c in node.columns]) + '"'

    def condition(self, *nodes):
        one, other = (self.column(self.rng.choice(nodes)) for _ in range(2))
        return self.rng.choice(
            [
                f"{one} <= {other}",
                f"{one} IS NOT DISTINCT FROM {other}",
                f"{one} = {other}",
                f"coalesce({one}, 1) = 1",
                f"{one} + {self.column(nodes[0])} = {other}",
                f"{one} IS NULL",
                f"{one} = 1",
            ]
        )

    def tree(self):
        parts = [
            scan(n, "k int, x int, y bigint") for n in self.rng.sample("abcdefg", self.rng.choice([3, 4, 4, 5, 6]))
        ]
        if self.rng.random() < 0.15:
            parts.append(
                group(scan("a", "k int, x int, y bigint", alias="z"), self.rng.choice(["", "z.k"]), "max(z.x)")
            )
        while len(parts) > 1:
            left = parts.pop(0)
            right = parts.pop(self.rng.choice([0, -1]))
            kind = self.rng.choice(["inner"] * 5 + ["left", "left", "semi", "anti", "full", "right"])
            keys = ", ".join(
                f"{self.column(left)} {self.rng.choice(['='] * 5 + ['=='])} {self.column(right)}"
                for _ in range(self.rng.choice([1, 1, 2]))
            )
            residual = self.condition(left, right) if self.rng.random() < 0.2 else None
            if kind == "inner" and self.rng.random() < 0.2:
                keys, residual = "", None  # a comma, and the equality in WHERE
                made = where(join(left, right, "inner"), f"{self.column(left)} = {self.column(right)}")
            else:
                made = join(left, right, kind, keys, residual)
            if self.rng.random() < 0.2:
                made = where(made, self.condition(made))
            if self.rng.random() < 0.15:
                kept = self.rng.sample(made.columns, self.rng.choice([1, len(made.columns)]))
                made = project(made, **{f"p{self.rng.random()}": (f'"{c.id}"', c.type) for c in kept})
            parts.insert(self.rng.choice([0, 0, len(parts)]), made)
        return parts[0]

    def content(self, tree):
        return sorted(self.connection.execute(to_sql(tree)).fetchall(), key=repr)


def check(seed, order):
    graphs = Graphs(seed)
    tree = graphs.tree()
    expected = graphs.content(tree)
    assert graphs.content(ordered(tree, order)) == expected, seed
    assert graphs.content(rewrite(tree, order)) == expected, seed


@pytest.mark.parametrize("order", ["bushy", "left-deep", "written"])
def test_any_order_gives_the_same_rows(order):
    for seed in range(SEEDS):
        check(seed, order)


@pytest.mark.parametrize("order", ["bushy", "left-deep", "written"])
@pytest.mark.parametrize("hundred", mostly_slow(range(1, 3), 0))
def test_any_order_of_many_graphs_gives_the_same_rows(order, hundred):
    for seed in range(100 * hundred, 100 * hundred + 50):
        check(seed, order)
