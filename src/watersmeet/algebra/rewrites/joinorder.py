"""Orders joins: the inner joins of a graph become one tree with the least height and the fewest changes of key.

    FROM a, b, c WHERE a.x = c.x AND b.y = c.y                ->   (a JOIN c ON a.x = c.x) JOIN b ON c.y = b.y
    a JOIN b ON a.k = b.k JOIN c ON b.k = c.k JOIN d ON c.k = d.k   ->   (a JOIN b) JOIN (c JOIN d)

Equalities are transitive: each join needs one key from each class that it connects, which implies the others. Inputs
that no equality connects are joined only if one of them has a single row; the planner rejects other joins without keys.
LEFT, semi and anti joins are inputs of the graph. They stay in place unless moving them saves an exchange or reduces
the number of joins after an append-only input. RIGHT and FULL joins always stay in place.

Sources: RisingWave, "Understanding streaming joins", on join ordering (bushy trees of small height; in a chain of left
joins the faster stream is closer to the output).

A join graph is turned into a relation in two steps: trees of connected inputs, then joins that are only possible
because an input has a single row.

The search for the best tree is exact for few inputs and greedy for many.

No statistics are used. Trees without a cross product are compared by the number of stages (the longest chain of changes
of key), then by height, by the number of exchanges, by the number of joins after the faster inputs (the append-only
ones), and by the written order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, Filter, Join, Node, Project, Scan, Union
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.rewrites.conditions import as_predicate, key_pair
from watersmeet.algebra.rewrites.joingraph import JoinGraph, Mask, is_transparent, text_of
from watersmeet.algebra.scalars import Scalar, conjunction
from watersmeet.algebra.trees import exactly, filtered, read, with_inputs

Shape = Literal["bushy", "left-deep"]

#: With more inputs than this the search is greedy, because the exact search takes 3^n steps.
EXACT_INPUTS: Final = 9


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A tree over the inputs `inputs`.

    sharding: the equalities by which its rows are distributed; 0 for any other distribution.
    stage, exchanges: the counts of `planner.distribution`.
    fast: the number of joins after fast inputs.
    """

    inputs: Mask
    classes: Mask
    sharding: Mask
    stage: int
    height: int
    exchanges: int
    fast_inputs: int
    fast: int
    disorder: int
    left: JoinPlan | None = None
    right: JoinPlan | None = None

    @property
    def cost(self) -> tuple[int, ...]:
        """The cost, of which a smaller value is better; see the module."""
        return self.stage, self.height, self.exchanges, self.fast, self.disorder


class JoinTrees:
    """Finds trees over `graph`.

    leaves: the plan of each input, in order.
    wish: the equalities by which a reader needs the rows distributed.
    """

    def __init__(self, graph: JoinGraph, leaves: list[JoinPlan], wish: Mask, shape: Shape) -> None:
        self._graph = graph
        self._leaves = leaves
        self._wish = wish
        self._shape = shape

    def best(self, inputs: Mask) -> JoinPlan | None:
        """The best tree over `inputs`; None if no equalities connect them."""
        members = [1 << i for i in range(len(self._leaves)) if inputs >> i & 1]
        found = self._exact(members) if len(members) <= EXACT_INPUTS else self._greedy(members)
        return min(found, key=self.final, default=None)

    def final(self, plan: JoinPlan) -> tuple[int, ...]:
        """The cost of the plan including the exchange that its reader adds if rows are not distributed by its keys."""
        extra = bool(self._wish) and not (plan.sharding and not plan.sharding & ~self._wish)
        return (plan.stage + extra, *plan.cost[1:])

    def _exact(self, members: list[Mask]) -> list[JoinPlan]:
        table: dict[Mask, list[JoinPlan]] = {m: [self._leaf(m)] for m in members if not self._attached(m)}
        for size in _subsets(members):
            if size in table:
                continue
            found: list[JoinPlan] = []
            for left, right in self._splits(size):
                if left in table and (right in table or self._attached(right)):
                    others = table.get(right) or [self._leaf(right)]
                    for one in table[left]:
                        for other in others:
                            found += self._joined(one, other)
            if found:
                table[size] = _undominated(found)
        return table.get(sum(members), [])

    def _splits(self, inputs: Mask) -> Iterator[tuple[Mask, Mask]]:
        """All splits into a left and a right part. An attached input is always a right part by itself."""
        if self._shape == "left-deep":
            rest = inputs
            while rest:
                right = rest & -rest
                rest ^= right
                yield inputs ^ right, right
            return
        others = inputs & (inputs - 1)  # the first input is always on the left
        right = others & -others
        while right:
            yield inputs ^ right, right
            right = (right - others) & others

    def _greedy(self, members: list[Mask]) -> list[JoinPlan]:
        """Repeatedly joins the two parts with the lowest cost."""
        parts = [self._leaf(m) for m in members]
        while len(parts) > 1:
            options: list[tuple[tuple[int, ...], JoinPlan, JoinPlan, JoinPlan]] = []
            for one in parts:
                for other in parts:
                    if one is not other and self._may_pair(one, other, parts):
                        options += [(self._greedy_cost(j), j, one, other) for j in self._joined(one, other)]
            if not options:
                return []
            _, made, one, other = min(options, key=lambda o: o[0])
            parts = [made, *[p for p in parts if p is not one and p is not other]]
        return parts

    def _may_pair(self, one: JoinPlan, other: JoinPlan, parts: list[JoinPlan]) -> bool:
        if self._attached(one.inputs):
            return False
        if self._shape == "bushy":
            return self._attached(other.inputs) or one.inputs & -one.inputs < other.inputs & -other.inputs
        grown = [p for p in parts if p.left is not None]
        return other.left is None and (not grown or one is grown[0])

    def _greedy_cost(self, plan: JoinPlan) -> tuple[int, ...]:
        return plan.height, plan.stage, plan.exchanges, plan.fast, plan.disorder

    def _leaf(self, member: Mask) -> JoinPlan:
        return self._leaves[member.bit_length() - 1]

    def _attached(self, inputs: Mask) -> bool:
        return inputs.bit_count() == 1 and self._graph.inputs[inputs.bit_length() - 1].attached is not None

    def _joined(self, left: JoinPlan, right: JoinPlan) -> Iterator[JoinPlan]:
        """The joins of two parts, one for each possible distribution of their rows; none if no equality connects
        them.
        """
        common = left.classes & right.classes
        attached = None
        if self._attached(right.inputs):
            one = self._graph.inputs[right.inputs.bit_length() - 1]
            if one.requires & ~left.inputs:
                return
            attached, common = one.attached, one.keys
        if not common:
            return
        ways = {common}
        ways.update(p.sharding for p in (left, right) if p.sharding and not p.sharding & ~common)
        ways.update(way for way in (common & self._wish,) if way)
        for way in ways:
            stage = max(p.stage + (p.sharding != way) for p in (left, right))
            moved = sum(p.sharding != way or p.stage < stage for p in (left, right))
            fast = left.fast_inputs + right.fast_inputs
            yield JoinPlan(
                left.inputs | right.inputs,
                left.classes | right.classes | (0 if attached is None else common),
                way,
                stage,
                max(left.height, right.height) + 1,
                left.exchanges + right.exchanges + moved,
                fast,
                left.fast + right.fast + fast,
                left.disorder + right.disorder + _inversions(left.inputs, right.inputs),
                left,
                right,
            )


def _undominated(plans: list[JoinPlan]) -> list[JoinPlan]:
    """The plans without those that are worse in stage, height and cost than another plan with the same sharding."""
    kept: list[JoinPlan] = []
    for plan in sorted(plans, key=lambda p: p.cost):
        if not any(
            k.sharding == plan.sharding
            and k.stage <= plan.stage
            and k.height <= plan.height
            and k.cost[2:] <= plan.cost[2:]
            for k in kept
        ):
            kept.append(plan)
    return kept


def _inversions(left: Mask, right: Mask) -> int:
    """The number of inputs of `left` that follow an input of `right` in the query."""
    found = 0
    while right:
        first = right & -right
        found += (left & ~(first * 2 - 1)).bit_count()
        right ^= first
    return found


def _subsets(members: list[Mask]) -> Iterator[Mask]:
    """All subsets of `members`; smaller sets precede the sets that contain them."""
    for number in range(1, 1 << len(members)):
        yield sum(m for i, m in enumerate(members) if number >> i & 1)


JoinOrder = Literal["bushy", "left-deep", "written"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A relation with an estimate of its plan: the counts of `JoinPlan` and the distribution of its rows.

    sharding: for each key of the last exchange, the SQL of the expressions that equal it; None if unknown.
    """

    relation: Node
    stage: int = 0
    height: int = 0
    exchanges: int = 0
    fast_inputs: int = 0
    fast: int = 0
    sharding: tuple[_Texts, ...] | None = None

    def is_within(self, wish: _Texts) -> bool:
        """True if rows that are equal in `wish` are in the same bucket."""
        return bool(self.sharding) and all(members & wish for members in self.sharding or ())


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the graph that is already joined. plan: None if its cost is unknown.

    scattered: whether the last exchange of its rows was for a join with a single copied row; such an exchange can take
    the distribution that the reader needs.
    """

    inputs: Mask
    relation: Node
    plan: JoinPlan | None = None
    scattered: bool = False


class Cluster:
    """The joins of `node` in order. wish: the texts by which a reader prefers the rows to be distributed.

    order: a function that orders an input, given the texts by which the graph prefers its rows to be distributed.
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
        """The relation with the columns of the node in their order."""
        parts = self._singles() if order == "written" else self._connected(order)
        while len(parts) > 1:
            one, other = self._next_pair(parts)
            right = parts.pop(other)
            parts[one] = self._attach_all(self._join(parts[one], right))
        part = parts[0]
        top = filtered(part.relation, [c.predicate for c in self._graph.conditions if not c.reads])
        return self._placed(self._shown(top), part)

    def _singles(self) -> list[_Part]:
        """Each input by itself, with attached inputs joined to the inputs that they require."""
        graph = self._graph
        bases = [self._single(i) for i, one in enumerate(graph.inputs) if one.attached is None]
        return [self._attach_all(p) for p in bases]

    def _connected(self, order: Literal["bushy", "left-deep"]) -> list[_Part]:
        """The best tree of each connected part of the graph, in the written order."""
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
        """Input `i` with all conditions that read only it."""
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
        """A LEFT, semi or anti join, filtered by the graph's conditions on its columns."""
        one = self._graph.inputs[i]
        assert one.attached is not None
        joined = one.attached.join(part.relation, self._inputs[i].relation)
        above = [as_predicate(k) for k in self._graph.keys(part.inputs, 1 << i)] + self._graph.inside(i)
        above += self._graph.tested(part.inputs, 0, part.inputs | 1 << i)
        return _Part(part.inputs | 1 << i, filtered(joined, above))

    def _attach_all(self, part: _Part) -> _Part:
        """`part` joined with all attached inputs whose conditions read only columns of the part."""
        for i, one in enumerate(self._graph.inputs):
            if one.attached is not None and not part.inputs >> i & 1 and not one.requires & ~part.inputs:
                part = self._attach(part, i)
        return part

    def _join(self, left: _Part, right: _Part) -> _Part:
        """The inner join of two parts, with all conditions that can be tested on it."""
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
        """A join without keys: the single-row side is copied to the distribution that the other side has or needs."""
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
        """The parts to join next: the first pair of the best kind in the written order.

        The best kind are two parts that a key connects, then a part of one row with another part if together they
        provide one side of a key, then parts of many rows (which the planner will reject), then all others.
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
    """The columns in each side of an equality."""
    node = condition.expression
    if not isinstance(node, (exp.EQ, exp.NullSafeEQ)):
        return []
    return [Scalar(side, condition.type).columns for side in (node.this, node.expression)]


__all__ = ["JoinOrder", "connect_joins", "ordered"]
_Texts = frozenset[str]


def connect_joins(tree: Node) -> Node:
    """The tree with its joins in the best order, which may be bushy."""
    return ordered(tree, "bushy")


def ordered(tree: Node, order: JoinOrder) -> Node:
    """The tree with its joins ordered by the given shape; `written` reorders only joins without a key."""
    return _Ordering(order).order(tree, _Texts()).relation


class _Ordering:
    """A walk from the root that visits each node once for each wish."""

    def __init__(self, order: JoinOrder) -> None:
        self._order = order
        self._known: dict[tuple[int, _Texts], Placed] = {}

    def order(self, node: Node, wish: _Texts) -> Placed:
        """`node` with its joins in order. wish: texts, by some of which a reader prefers the rows to be distributed."""
        key = (id(node), wish)
        if key not in self._known:
            self._known[key] = self._ordered(node, wish)
        return self._known[key]

    def _ordered(self, node: Node, wish: _Texts) -> Placed:
        if is_transparent(node, move_outer=True) and self._may_reorder(node):
            return self._joins(node, wish)
        if isinstance(node, Filter):
            below = self.order(node.input, wish)
            return replace(below, relation=with_inputs(node, [below.relation]))
        if isinstance(node, Project):
            return self._project(node, wish)
        if isinstance(node, Aggregate):
            return self._aggregate(node, wish)
        if isinstance(node, Join):
            return self._fence(node)
        if isinstance(node, Scan):
            return Placed(node, fast_inputs=int(node.append_only))
        return self._parts(node, wish)

    def _parts(self, node: Node, wish: _Texts) -> Placed:
        parts = []
        for part in node.inputs:
            own = zip(part.columns, node.columns, strict=False) if isinstance(node, Union) else ()
            parts.append(self.order(part, _Texts(text_of(read(i)) for i, o in own if text_of(read(o)) in wish)))
        fast_inputs = sum(p.fast_inputs for p in parts)
        return Placed(
            with_inputs(node, [p.relation for p in parts]),
            max((p.stage for p in parts), default=0),
            max((p.height for p in parts), default=0),
            sum(p.exchanges for p in parts),
            fast_inputs,
            sum(p.fast for p in parts),
        )

    def _project(self, node: Project, wish: _Texts) -> Placed:
        texts = [(text_of(e), text_of(read(c))) for c, e in zip(node.outputs, node.exprs, strict=True)]
        below = self.order(node.input, _Texts(inner for inner, own in texts if own in wish))
        return replace(below, relation=with_inputs(node, [below.relation]), sharding=_renamed(below, texts))

    def _aggregate(self, node: Aggregate, wish: _Texts) -> Placed:
        texts = [(text_of(k), text_of(read(c))) for k, c in zip(node.keys, node.outputs, strict=False)]
        wanted = [t for t in texts if t[1] in wish] or texts
        below = self.order(node.input, _Texts(inner for inner, _ in wanted))
        relation = with_inputs(node, [below.relation])
        if below.is_within(_Texts(inner for inner, _ in texts)):
            return replace(below, relation=relation, sharding=_renamed(below, texts))
        return replace(
            below,
            relation=relation,
            stage=below.stage + 1,
            exchanges=below.exchanges + 1,
            sharding=tuple(_Texts([own]) for _, own in wanted),
        )

    def _fence(self, node: Join) -> Placed:
        left = self.order(node.left, _Texts(text_of(k.left) for k in node.keys))
        right = self.order(node.right, _Texts(text_of(k.right) for k in node.keys))
        joined = with_inputs(node, [left.relation, right.relation])
        fast_inputs = left.fast_inputs + right.fast_inputs
        return Placed(
            joined,
            max(left.stage, right.stage) + 1,
            max(left.height, right.height) + 1,
            left.exchanges + right.exchanges + 2,
            fast_inputs,
            left.fast + right.fast + fast_inputs,
        )

    def _may_reorder(self, node: Node) -> bool:
        return self._order != "written" or JoinGraph(node, move_outer=False).has_gap

    def _joins(self, node: Node, wish: _Texts) -> Placed:
        """The better of two trees, of which one keeps outer joins in place and the other moves them."""
        kept = self._cluster(node, wish, move_outer=False)
        moved = None if self._order == "written" else self._cluster(node, wish, move_outer=True)
        return moved if moved is not None and _cost(moved, wish) < _cost(kept, wish) else kept

    def _cluster(self, node: Node, wish: _Texts, *, move_outer: bool) -> Placed:
        return Cluster(node, JoinGraph(node, move_outer=move_outer), wish, self.order).tree(self._order)


def _cost(placed: Placed, wish: _Texts) -> tuple[int, int, int]:
    return placed.stage + bool(wish and not placed.is_within(wish)), placed.exchanges, placed.fast


def _renamed(placed: Placed, texts: list[tuple[str, str]]) -> tuple[_Texts, ...] | None:
    """The sharding with each text replaced according to `texts`."""
    if placed.sharding is None:
        return None
    return tuple(_Texts(own for inner, own in texts if inner in members) for members in placed.sharding)
