"""The best tree of joins over a join graph: exact for few inputs, greedy for many.

No statistics are used. Among all trees without a cross product the best has the fewest stages (the longest chain of
changes of key); then the smallest height; then the fewest exchanges; then the fewest joins above its faster inputs (the
append-only ones); then the written order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from watersmeet.algebra.rewrites.joingraph import JoinGraph, Mask

Shape = Literal["bushy", "left-deep"]

#: With more inputs than this the search is greedy: the exact one takes 3^n steps.
EXACT_INPUTS: Final = 9


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A tree over the inputs `inputs`.

    sharding: the equalities by which its rows are spread; 0 for any other way.
    stage, exchanges: where the rows are, counted as in `planner.distribution`.
    fast: joins above fast inputs.
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
        """Smaller is better; see the module."""
        return self.stage, self.height, self.exchanges, self.fast, self.disorder


class JoinTrees:
    """Finds trees over `graph`.

    leaves: the plan of each input, in order.
    wish: equalities by which a reader wants the rows spread.
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
        """The cost for the reader, who needs another exchange if the rows are not spread as wished."""
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
        """Left and right parts. An attached input is always a right part by itself."""
        if self._shape == "left-deep":
            rest = inputs
            while rest:
                right = rest & -rest
                rest ^= right
                yield inputs ^ right, right
            return
        others = inputs & (inputs - 1)  # the first one is always on the left
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
        """The joins of two parts, one for each way to bring their rows together; none if nothing connects them."""
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
    """The plans without those that another plan with the same sharding beats in stage, height and cost."""
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
    """How many inputs of `left` are written after one of `right`."""
    found = 0
    while right:
        first = right & -right
        found += (left & ~(first * 2 - 1)).bit_count()
        right ^= first
    return found


def _subsets(members: list[Mask]) -> Iterator[Mask]:
    """All sets of `members`, each after its own subsets."""
    for number in range(1, 1 << len(members)):
        yield sum(m for i, m in enumerate(members) if number >> i & 1)
