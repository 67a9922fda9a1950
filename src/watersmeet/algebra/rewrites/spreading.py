"""Chooses by which of their keys joins and groups spread their rows, so that readers find the rows in place.

    group by k of (group by k, x of a)                    ->   the inner groups are spread by k alone
    (group by k of a) JOIN (group by k, x of b) ON k      ->   both are spread by k
    a JOIN b ON a.j = b.j AND a.k = b.k, group by a.k     ->   the join spreads by k

Rows that agree on all keys agree on any subset of them, so spreading by fewer keys is always correct. It saves an
exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from watersmeet.algebra.nodes import (
    Aggregate,
    Changes,
    Column,
    Join,
    Node,
    Partitioned,
    PassThrough,
    Project,
    Records,
    TimeFilter,
    Union,
)
from watersmeet.algebra.properties import is_single_row
from watersmeet.algebra.rewrites.joingraph import text_of
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import read, with_inputs

_Scalars = tuple[Scalar, ...]


def spread_for_readers(tree: Node) -> Node:
    """The tree with the `spread` of its joins and groups chosen for their readers."""
    return _spread(tree, ())


def _spread(node: Node, wish: _Scalars) -> Node:
    """`node` for a reader that needs rows in one place if they agree on `wish` (over its columns), or on part of it."""
    if isinstance(node, TimeFilter):
        return replace(node, input=_spread(node.input, wish), scatter=wish)
    if isinstance(node, Join):
        return _join(node, wish) if node.keys else _copying(node, wish)
    if node.together:
        return with_inputs(node, [_spread(i, values) for i, values in zip(node.inputs, node.together, strict=True)])
    if isinstance(node, PassThrough):
        return with_inputs(node, [_spread(node.input, wish)])
    if isinstance(node, Project):
        return with_inputs(node, [_spread(node.input, _translated(wish, zip(node.outputs, node.exprs, strict=True)))])
    if isinstance(node, Records):
        return with_inputs(
            node, [_spread(node.input, tuple(read(c) for c in node.input.columns if c.id in (node.key or ())))]
        )
    if isinstance(node, Changes):
        return _changes(node)
    if isinstance(node, Union):
        return with_inputs(
            node,
            [_spread(p, _translated(wish, zip(node.outputs, map(read, p.columns), strict=True))) for p in node.parts],
        )
    if isinstance(node, Aggregate):
        positions = {text_of(read(c)): i for i, c in enumerate(node.outputs[: len(node.keys)])}
        wanted = tuple(positions[text_of(w)] for w in wish if text_of(w) in positions)
        everything = tuple(range(len(node.keys)))
        below = _spread(node.input, tuple(node.keys[i] for i in wanted or everything))
        return replace(node, input=below, spread=() if wanted == everything else wanted)
    return with_inputs(node, [_spread(i, ()) for i in node.inputs])


def _changes(node: Changes) -> Node:
    by_id = {c.id: read(c) for c in node.input.columns}
    causes = node.inputs[1:]
    width = len(node.matched)
    below = [_spread(node.input, tuple(by_id[i] for i in node.matched))]
    return with_inputs(node, below + [_spread(i, tuple(map(read, i.columns[:width]))) for i in causes])


def _translated(wish: _Scalars, outputs: Iterable[tuple[Column, Scalar]]) -> _Scalars:
    """The wish of a reader in terms of the expressions that compute its columns."""
    inner = {c.id: e for c, e in outputs}
    found = [
        inner[w.column] if w.column is not None else w.substitute({i: inner[i].expression for i in w.columns})
        for w in wish
        if w.columns <= inner.keys()
    ]
    return tuple(dict.fromkeys(w for w in found if w.columns))


def _join(node: Join, wish: _Scalars) -> Join:
    pairs = [(text_of(k.left), text_of(k.right)) for k in node.keys]
    wished = frozenset(text_of(w) for w in wish)
    chosen = list(range(len(pairs)))
    sides = [s for s, kept in enumerate((node.keeps_left, node.keeps_right)) if kept]  # whose keys say where a row is
    for side, texts in ((0, _groups(node.left)), (1, _groups(node.right)), *((s, wished) for s in sides)):
        chosen = [i for i in chosen if pairs[i][side] in texts] or chosen if texts else chosen
    left = _spread(node.left, tuple(dict.fromkeys(node.keys[i].left for i in chosen)))
    right = _spread(node.right, tuple(dict.fromkeys(node.keys[i].right for i in chosen)))
    return replace(node, left=left, right=right, spread=tuple(chosen) if len(chosen) < len(pairs) else ())


def _copying(node: Join, wish: _Scalars) -> Join:
    """A join without keys: one side is copied, and the other one goes where the reader wants it."""
    copied_left = node.kind in ("inner", "right") and is_single_row(node.left) and not is_single_row(node.right)
    wide = node.right if copied_left else node.left
    own = tuple(w for w in wish if w.columns and w.columns <= wide.ids)
    left, right = (_spread(i, own if i is wide else ()) for i in (node.left, node.right))
    return replace(node, left=left, right=right, scatter=own)


def _groups(node: Node) -> frozenset[str]:
    """The texts by which the rows of `node` are grouped, if they are. Others would need a further exchange."""
    if isinstance(node, Partitioned):
        return frozenset(map(text_of, node.partition))
    if isinstance(node, PassThrough):
        return _groups(node.input)
    if isinstance(node, Project):
        below = _groups(node.input)
        return frozenset(text_of(read(c)) for c, e in zip(node.outputs, node.exprs, strict=True) if text_of(e) in below)
    if isinstance(node, Aggregate):
        return frozenset(text_of(read(c)) for c in node.outputs[: len(node.keys)])
    return frozenset()
