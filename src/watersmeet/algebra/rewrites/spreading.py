"""By which of their keys joins and groups spread their rows, so that what reads them finds the rows in place.

    group by k of (group by k, x of a)                    ->   the inner groups are spread by k alone
    (group by k of a) JOIN (group by k, x of b) ON k      ->   both are spread by k
    a JOIN b ON a.j = b.j AND a.k = b.k, group by a.k     ->   the join spreads by k

Rows that agree on all keys agree on some of them, so that fewer keys are always right; they save an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from watersmeet.algebra.relations import Aggregate, AsofJoin, Column, Filter, Join, Project, Relation, Union
from watersmeet.algebra.rewrites.joingraph import text_of
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import read, with_inputs

_Texts = tuple[str, ...]


def spread_for_readers(tree: Relation) -> Relation:
    """The tree with `spread` of its joins and groups chosen for their readers."""
    return _spread(tree, ())


def _spread(node: Relation, wish: _Texts) -> Relation:
    """`node` for a reader that needs rows together that agree on some of the texts `wish`; any, if there are none."""
    if isinstance(node, Filter):
        return with_inputs(node, [_spread(node.input, wish)])
    if isinstance(node, Project):
        return with_inputs(node, [_spread(node.input, _translated(wish, zip(node.outputs, node.exprs, strict=True)))])
    if isinstance(node, Union):
        return with_inputs(node, [
            _spread(p, _translated(wish, zip(node.outputs, map(read, p.columns), strict=True))) for p in node.parts])
    if isinstance(node, Aggregate):
        positions = {text_of(read(c)): i for i, c in enumerate(node.outputs[: len(node.keys)])}
        wanted = tuple(positions[t] for t in wish if t in positions)
        everything = tuple(range(len(node.keys)))
        below = _spread(node.input, tuple(text_of(node.keys[i]) for i in wanted or everything))
        return replace(node, input=below, spread=() if wanted == everything else wanted)
    if isinstance(node, Join) and node.keys:
        return _join(node, wish)
    if isinstance(node, AsofJoin):
        sides = ((node.left, [k.left for k in node.keys]), (node.right, [k.right for k in node.keys]))
        return with_inputs(node, [_spread(one, tuple(text_of(k) for k in keys)) for one, keys in sides])
    return with_inputs(node, [_spread(i, ()) for i in node.inputs])


def _translated(wish: _Texts, outputs: Iterable[tuple[Column, Scalar]]) -> _Texts:
    """The texts of a reader in terms of what computes them."""
    texts = {text_of(read(c)): text_of(e) for c, e in outputs}
    return tuple(dict.fromkeys(texts[t] for t in wish if t in texts))


def _join(node: Join, wish: _Texts) -> Join:
    pairs = [(text_of(k.left), text_of(k.right)) for k in node.keys]
    chosen = list(range(len(pairs)))
    for side, texts in ((0, _groups(node.left)), (1, _groups(node.right)), *((s, wish) for s in _kept_sides(node))):
        chosen = [i for i in chosen if pairs[i][side] in texts] or chosen if texts else chosen
    left, right = (_spread(one, tuple(dict.fromkeys(pairs[i][side] for i in chosen)))
                   for side, one in enumerate((node.left, node.right)))
    return replace(node, left=left, right=right, spread=tuple(chosen) if len(chosen) < len(pairs) else ())


def _kept_sides(node: Join) -> tuple[int, ...]:
    """The sides whose key says where a row of the join is: 0 for left, 1 for right."""
    return {"inner": (0, 1), "right": (1,), "full": ()}.get(node.kind, (0,))


def _groups(node: Relation) -> frozenset[str]:
    """The texts by which the rows of `node` are grouped, if they are: nothing else can spread them for free."""
    if isinstance(node, Filter):
        return _groups(node.input)
    if isinstance(node, Project):
        below = _groups(node.input)
        return frozenset(text_of(read(c)) for c, e in zip(node.outputs, node.exprs, strict=True) if text_of(e) in below)
    if isinstance(node, Aggregate):
        return frozenset(text_of(read(c)) for c in node.outputs[: len(node.keys)])
    return frozenset()
