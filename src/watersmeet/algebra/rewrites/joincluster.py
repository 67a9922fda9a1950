"""From a join graph back to a relation: trees of what equalities connect, then joins that only single rows allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from watersmeet.algebra.cardinality import is_single_row
from watersmeet.algebra.nodes import Join, Node, Project
from watersmeet.algebra.rewrites.joingraph import JoinGraph, Mask, text_of
from watersmeet.algebra.rewrites.jointrees import JoinPlan, JoinTrees
from watersmeet.algebra.rewrites.keys import as_predicate, key_pair
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.algebra.trees import exactly, filtered, read

JoinOrder = Literal["bushy", "left-deep", "written"]

_Texts = frozenset[str]


@dataclass(frozen=True, slots=True)
class Placed:
    """A relation, and an estimate of its plan: the counts of `JoinPlan`, and where its rows are.

    sharding: for each key of the last exchange, the texts that have its value; None if unknown.
    """

    relation: Node
    stage: int = 0
    height: int = 0
    exchanges: int = 0
    fast_inputs: int = 0
    fast: int = 0
    sharding: tuple[_Texts, ...] | None = None

    def is_within(self, wish: _Texts) -> bool:
        """True if rows that agree on `wish` are in one place."""
        return bool(self.sharding) and all(members & wish for members in self.sharding or ())


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the graph that is already joined. plan: None if its cost is unknown.

    scattered: its rows moved last to meet a copied row, so they are where the reader wants them.
    """

    inputs: Mask
    relation: Node
    plan: JoinPlan | None = None
    scattered: bool = False


class Cluster:
    """The graph of `node`, in order. wish: texts by which a reader would like the rows to be spread.

    order: a function that orders an input, given the texts by which the graph would like it to be spread.
    """

    def __init__(self, node: Node, graph: JoinGraph, wish: _Texts, order: Callable[[Node, _Texts], Placed]) -> None:
        self._node = node
        self._graph = graph
        columns = [graph.values.get(c.id, read(c)) for c in node.columns]
        self._texts = [(text_of(s), text_of(read(c))) for s, c in zip(columns, node.columns, strict=True)]
        self._columns = columns
        wanted = _Texts(inner for inner, own in self._texts if own in wish)
        numbers = range(len(graph.equalities))
        everything = (1 << len(graph.inputs)) - 1
        self._wish = sum(1 << n for n in numbers if graph.texts(n, everything) & wanted)
        self._reader = wish
        self._renamed = _Texts(inner for inner, own in self._texts if inner != own)
        self._inputs = [order(one.relation, _Texts(graph.shards(i))) for i, one in enumerate(graph.inputs)]

    def tree(self, order: JoinOrder) -> Placed:
        """The relation, with the columns of the node in their order."""
        parts = self._singles() if order == "written" else self._connected(order)
        while len(parts) > 1:
            one, other = self._next_pair(parts)
            right = parts.pop(other)
            parts[one] = self._attach_all(self._join(parts[one], right))
        part = parts[0]
        top = filtered(part.relation, [c.predicate for c in self._graph.conditions if not c.reads])
        return self._placed(self._shown(top), part)

    def _singles(self) -> list[_Part]:
        """Each input by itself; attached inputs where they belong."""
        graph = self._graph
        bases = [self._single(i) for i, one in enumerate(graph.inputs) if one.attached is None]
        return [self._attach_all(p) for p in bases]

    def _connected(self, order: Literal["bushy", "left-deep"]) -> list[_Part]:
        """The best tree of each part of the graph that equalities connect, in the written order."""
        trees = JoinTrees(self._graph, [self._leaf(i) for i in range(len(self._inputs))], self._wish, order)
        parts = []
        for inputs in self._graph.components(attached=True):
            plan = trees.best(inputs)
            if plan is not None:
                parts.append(self._built(plan))
                continue
            found = [trees.best(inner) for inner in self._graph.components(attached=False) if not inner & ~inputs]
            parts += [self._attach_all(self._built(p)) for p in found if p is not None]
        return parts

    def _leaf(self, i: int) -> JoinPlan:
        placed, shards = self._inputs[i], self._graph.shards(i)
        sharding = 0
        for members in placed.sharding or ():
            numbers = sorted({shards[t] for t in members if t in shards})
            if not numbers:
                sharding = 0
                break
            sharding |= 1 << numbers[0]
        return JoinPlan(
            1 << i,
            self._graph.inputs[i].classes,
            sharding,
            placed.stage,
            placed.height,
            placed.exchanges,
            placed.fast_inputs,
            placed.fast,
            0,
        )

    def _single(self, i: int) -> _Part:
        """Input `i` with all conditions on it alone."""
        own = [c.predicate for c in self._graph.conditions if c.reads == 1 << i]
        return _Part(1 << i, filtered(self._inputs[i].relation, self._graph.inside(i) + own), self._leaf(i))

    def _built(self, plan: JoinPlan) -> _Part:
        if plan.left is None or plan.right is None:
            return self._single(plan.inputs.bit_length() - 1)
        left = self._built(plan.left)
        i = plan.right.inputs.bit_length() - 1
        attached = plan.right.left is None and self._graph.inputs[i].attached is not None
        joined = self._attach(left, i) if attached else self._join(left, self._built(plan.right))
        return _Part(plan.inputs, joined.relation, plan)

    def _attach(self, part: _Part, i: int) -> _Part:
        """A LEFT, semi or anti join, with the graph's conditions on its columns above it."""
        one = self._graph.inputs[i]
        assert one.attached is not None
        joined = one.attached.join(part.relation, self._inputs[i].relation)
        above = [as_predicate(k) for k in self._graph.keys(part.inputs, 1 << i)] + self._graph.inside(i)
        above += self._graph.tested(part.inputs, 0, part.inputs | 1 << i)
        return _Part(part.inputs | 1 << i, filtered(joined, above))

    def _attach_all(self, part: _Part) -> _Part:
        """`part` with all attached inputs that read nothing else."""
        for i, one in enumerate(self._graph.inputs):
            if one.attached is not None and not part.inputs >> i & 1 and not one.requires & ~part.inputs:
                part = self._attach(part, i)
        return part

    def _join(self, left: _Part, right: _Part) -> _Part:
        """The inner join of two parts, with all conditions that can be tested now."""
        keys = self._graph.keys(left.inputs, right.inputs)
        residual = []
        both = left.inputs | right.inputs
        for part in self._graph.tested(left.inputs, right.inputs, both):
            pair = key_pair(part, left.relation, right.relation)
            if pair is None:
                residual.append(part)
            else:
                keys.append(pair)
        span = None if keys else self._graph.span
        joined = Join(left.relation, right.relation, "inner", tuple(keys), conjunction(residual), span=span)
        return _Part(both, joined) if keys else self._crossed(left, right, joined)

    def _crossed(self, left: _Part, right: _Part, joined: Join) -> _Part:
        """A join without keys: the single-row side is copied to where the other side is, or has to move."""
        inputs = left.inputs | right.inputs
        wide, copied = (right, left) if is_single_row(left.relation) else (left, right)
        if wide.plan is None or copied.plan is None:
            return _Part(inputs, joined)
        one, other = wide.plan, copied.plan
        stage = max(one.stage, other.stage + 1)
        moves = one.stage < stage
        fast_inputs = one.fast_inputs + other.fast_inputs
        plan = JoinPlan(
            inputs,
            one.classes | other.classes,
            one.sharding,
            stage,
            max(one.height, other.height) + 1,
            one.exchanges + other.exchanges + 1 + moves,
            fast_inputs,
            one.fast + other.fast + fast_inputs,
            0,
        )
        return _Part(inputs, joined, plan, moves or wide.scattered)

    def _next_pair(self, parts: list[_Part]) -> tuple[int, int]:
        """The parts to join next: the first pair of the best kind, in the written order.

        Best are two parts that a key connects. Next is a part of one row and another part, if together they make one
        side of a key. Then come parts of many rows (which the planner will refuse), then all others.
        """
        pairs = [(one, other) for one in range(len(parts)) for other in range(one + 1, len(parts))]
        conditions = [c.predicate for c in self._graph.conditions]
        for one, other in pairs:
            left, right = parts[one], parts[other]
            if self._graph.keys(left.inputs, right.inputs) or any(
                key_pair(c, left.relation, right.relation) is not None for c in conditions
            ):
                return one, other
        single = {i for i, p in enumerate(parts) if is_single_row(p.relation)}
        sides = [s for c in conditions for s in _sides(c)]
        for one, other in pairs:
            left_ids, right_ids = parts[one].relation.ids, parts[other].relation.ids
            if {one, other} & single and any(
                s <= left_ids | right_ids and not (s <= left_ids or s <= right_ids) for s in sides
            ):
                return one, other
        return next((p for p in pairs if not set(p) & single), pairs[0])

    def _shown(self, relation: Node) -> Node:
        columns = self._node.columns
        if all(s.column == c.id for s, c in zip(self._columns, columns, strict=True)):
            return exactly(relation, columns)
        return Project(relation, columns, tuple(self._columns))

    def _placed(self, relation: Node, part: _Part) -> Placed:
        plan, count = part.plan, len(self._inputs)
        if plan is None:
            return Placed(relation, count, count, 2 * count)
        numbers = [n for n in range(len(self._graph.equalities)) if plan.sharding >> n & 1]
        texts = [self._graph.texts(n, plan.inputs) for n in numbers]
        sharding = tuple(_Texts(own for inner, own in self._texts if inner in t) | (t - self._renamed) for t in texts)
        if part.scattered and self._reader:
            sharding = tuple(_Texts([t]) for t in sorted(self._reader))
        return Placed(relation, plan.stage, plan.height, plan.exchanges, plan.fast_inputs, plan.fast, sharding or None)


def _sides(condition: Scalar) -> list[frozenset[str]]:
    """The columns of both sides of an equality."""
    node = condition.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return []
    return [Scalar(side, condition.type).columns for side in (node.this, node.expression)]
