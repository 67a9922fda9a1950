"""The order of joins: the inner joins of a graph become one tree, as low and with as few changes of key as possible.

    FROM a, b, c WHERE a.x = c.x AND b.y = c.y                ->   (a JOIN c ON a.x = c.x) JOIN b ON c.y = b.y
    a JOIN b ON a.k = b.k JOIN c ON b.k = c.k JOIN d ON c.k = d.k   ->   (a JOIN b) JOIN (c JOIN d)

Equalities are transitive: each join takes one key from each class that it connects, and the rest follows. Inputs that
no equality connects are joined only if one of them has a single row; the planner refuses all others. LEFT, semi and
anti joins are inputs of the graph. They stay in place unless moving them saves an exchange or takes an append-only
input past fewer joins. RIGHT and FULL joins always stay in place.

Sources: RisingWave, "Understanding streaming joins", on join ordering (bushy and low trees; in a chain of left joins
the faster stream nearer to the output).
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.algebra.nodes import Aggregate, Filter, Join, Node, Project, Scan, Union
from watersmeet.algebra.rewrites.joincluster import Cluster, JoinOrder, Placed
from watersmeet.algebra.rewrites.joingraph import JoinGraph, is_transparent, text_of
from watersmeet.algebra.trees import read, with_inputs

__all__ = ["JoinOrder", "connect_joins", "ordered"]

_Texts = frozenset[str]


def connect_joins(tree: Node) -> Node:
    """The tree with its joins in the best order, bushy."""
    return ordered(tree, "bushy")


def ordered(tree: Node, order: JoinOrder) -> Node:
    """The tree with its joins in an order of the given shape; `written` reorders only joins without a key."""
    return _Ordering(order).order(tree, _Texts()).relation


class _Ordering:
    """One walk from the root. Each node is visited once for each wish."""

    def __init__(self, order: JoinOrder) -> None:
        self._order = order
        self._known: dict[tuple[int, _Texts], Placed] = {}

    def order(self, node: Node, wish: _Texts) -> Placed:
        """`node` with its joins in order. wish: a reader would like the rows to be spread by some of these texts."""
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
        """The better of two trees: one that keeps outer joins in place, and one that moves them."""
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
