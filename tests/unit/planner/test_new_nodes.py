"""What CONTRIBUTING says a new node or operator takes: nothing else knows the classes one by one.

`Sampled` is a node that no module of the package knows. What it says of itself is enough for all rewrites and analyses;
how it is computed and shown is said here, as it would be in `planner.lowering` and `planner.logical`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests import algebra_to_sql, circuit_to_sql
from tests.trees import e, group, join, p, scan, sink_of, values, where

from watersmeet.algebra.cardinality import constants, is_single_row
from watersmeet.algebra.relations import Aggregate, Apply, Filter, Join, PassThrough, Project, Relation, Unary, Versions
from watersmeet.algebra.revisions import revision
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.rewrites.folding import fold_constants
from watersmeet.algebra.rewrites.pruning import prune_columns
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.rewrites.spreading import spread_for_readers
from watersmeet.algebra.rewrites.unnesting import unnest
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import exactly, transform_up, walk
from watersmeet.algebra.watermarks import watermarks
from watersmeet.circuit.operators import KINDS, Exchange, Map, Scan, Sink
from watersmeet.kernel.operators import STEPS
from watersmeet.planner import compile_view, logical
from watersmeet.planner.lowering import Lowering
from watersmeet.planner.plan_tree import PlanTree
from watersmeet.watermarks import Term


@dataclass(frozen=True)
class Sampled(PassThrough):
    """Some rows of the input: those for which a hash of `by` is even."""

    grows = True
    keeps_times = True
    by: Scalar

    @property
    def scalars(self):
        return (self.by,)

    def changed(self, change):
        return replace(self, by=change(self.by))


@logical._print.register
def _(node: Sampled, names):
    return PlanTree("LogicalSample", (), (logical._print(node.input, names),))


@Lowering.__dict__["lower"].register
def _(self, node: Sampled, needed):
    below = self.lower(node.input, needed | node.by.columns)
    return below.filtered([e(f'hash("{node.by.column}") % 2 = 0')])


def sampled(node, by):
    return Sampled(node, e(by))


def found(tree):
    return next(n for n in walk(tree) if isinstance(n, Sampled))


def test_a_new_node_is_walked_and_rebuilt():
    tree = where(sampled(scan("a"), "a.k"), "a.x > 1")
    assert transform_up(tree, lambda n: n) is tree
    changed = transform_up(tree, lambda n: replace(n, relation_name="b") if not n.inputs else n)
    assert found(changed).input.relation_name == "b"


def test_columns_that_it_reads_are_kept_and_others_are_not():
    tree = exactly(sampled(scan("a"), "a.k"), scan("a").columns[1:2])
    assert [c.id for c in found(prune_columns(tree)).input.columns] == ["a.k", "a.x"]


def test_conditions_stay_above_it_and_those_below_go_on():
    below = where(where(scan("a"), "a.k > 2"), "a.x > 1")
    pushed = push_filters(where(sampled(below, "a.k"), "a.y > 1"))
    assert isinstance(pushed, Filter)
    assert pushed.predicate == p("a.y > 1")
    assert found(pushed).input == push_filters(below)


def test_of_no_rows_there_are_none():
    tree = fold_constants(sampled(where(scan("a"), "FALSE"), "a.k"))
    assert not list(tree.inputs)
    assert tree.rows == ()


def test_it_has_no_more_rows_than_its_input_and_the_same_constants():
    assert is_single_row(sampled(values([(1, 2)]), "v0"))
    assert not is_single_row(sampled(scan("a"), "a.k"))
    keyed = where(sampled(replace(scan("a"), key=("a.k",)), "a.x"), "a.k = 7")
    assert is_single_row(keyed)
    assert constants(sampled(where(scan("a"), "a.k = 7"), "a.x")) == {"a.k"}


def test_its_rows_only_come_and_keep_their_watermarks():
    timed = replace(scan("a", append_only=True), watermarks=(("a.x", (Term("a"),)),))
    assert revision(sampled(timed, "a.k")) is None
    assert revision(sampled(scan("a"), "a.k")) == '"a" is not append-only'
    assert watermarks(sampled(timed, "a.k")) == {"a.x": (Term("a"),)}


def test_what_is_read_above_says_where_rows_below_go():
    tree = group(sampled(join(scan("a"), scan("b"), "inner", "a.k = b.k, a.x = b.x"), "a.y"), "a.x")
    pairs = next(n for n in walk(spread_for_readers(tree)) if isinstance(n, Join))
    assert pairs.spread == (1,)


def test_it_may_stand_in_a_subquery_and_read_what_is_around_it():
    inner = sampled(where(scan("b"), "b.k = a.k"), "a.x")
    tree = unnest(Apply(scan("a"), inner, "inner"))
    assert not any(isinstance(n, Apply) for n in walk(tree))
    assert not tree.free
    assert found(tree).by.columns <= found(tree).input.ids


def test_it_is_compiled_and_shown():
    tree = rewrite(group(sampled(scan("a"), "a.k"), "a.x"))
    assert [line.strip("└─ ").split()[0] for line in logical.logical_tree(tree).lines()] == [
        "LogicalAgg",
        "LogicalSample",
        "LogicalScan",
    ]
    ops = compile_view(tree, sink_of(tree), {}, 3)
    assert [o.predicate for o in ops if isinstance(o, Map)] == ["HASH(c0) % 2 = 0"]
    assert isinstance(ops[-1], Sink)


def subclasses(cls):
    for found in cls.__subclasses__():
        yield found
        yield from subclasses(found)


def own(cls):
    """The nodes or operators of the package, without what others are made of."""
    return [c for c in subclasses(cls) if c.__module__.startswith("watersmeet.") and not c.__subclasses__()]


def test_every_node_is_shown_and_lowered_and_its_meaning_is_written_down():
    lower = Lowering.__dict__["lower"].dispatcher
    nodes = own(Relation)
    assert {Project, Aggregate, Join} < set(nodes)
    assert not {Unary, PassThrough} & set(nodes)
    for cls in nodes:
        assert logical._print.dispatch(cls) is not logical._print.dispatch(Relation), cls
        assert algebra_to_sql._from.dispatch(cls) is not algebra_to_sql._from.dispatch(Relation), cls
        if cls not in (Apply, Versions):  # one is gone after `unnest`, the other a part of the ASOF join above it
            assert lower.dispatch(cls) is not lower.dispatch(Relation), cls


def test_every_kind_of_operator_has_its_code_and_its_meaning_is_written_down():
    for kind, cls in KINDS.items():
        assert kind in STEPS or cls in (Scan, Exchange, Sink), "the executor does the others"
        assert cls in circuit_to_sql._BODIES or cls in circuit_to_sql._MOMENTS, kind
    assert STEPS.keys() <= KINDS.keys()
