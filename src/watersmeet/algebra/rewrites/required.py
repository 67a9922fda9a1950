"""Rewrites nodes by the requirements of their readers: fewer columns, and rows distributed by the keys of readers.

Operators that evaluate each row once and keep the result need whole rows, which are identified by their table rows and
groups. A whole row changes when one of these changes in any column, even one that is not read.

Joins and groups are distributed by those of their keys that their readers need, which saves exchanges. Rows that are
equal in all keys are also equal in a subset of them, so fewer keys are always correct.

    group by k of (group by k, x of a)                    ->   the inner groups are distributed by k only
    (group by k of a) JOIN (group by k, x of b) ON k      ->   both are distributed by k
    a JOIN b ON a.j = b.j AND a.k = b.k, group by a.k     ->   the join is distributed by k
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Final

from watersmeet.algebra.nodes import (
    Aggregate,
    Arrivals,
    Binary,
    Changes,
    Clock,
    Column,
    Join,
    Node,
    Partitioned,
    PassThrough,
    Project,
    Records,
    Scan,
    TemporalJoin,
    TimeFilter,
    Unary,
    Union,
    Unnest,
    Values,
    Versions,
    Window,
)
from watersmeet.algebra.properties import is_single_row, revision
from watersmeet.algebra.rewrites.joingraph import text_of
from watersmeet.algebra.scalars import Scalar, null_of
from watersmeet.algebra.trees import exactly, read, transform_up, walk, with_inputs


def whole_rows(node: Node) -> tuple[Node, _Ids]:
    """The node with additional columns, and the ids of the columns that identify its rows.

    Project(x, Filter(p, Scan(k, x, y)))   ->   Project(x, k, y, Filter(p, Scan(k, x, y))): k, x, y
    """
    if isinstance(node, Project):
        return _projected(node)
    if isinstance(node, Union):
        return _united(node)
    if isinstance(node, Aggregate):
        return node, _ids(node.outputs[: len(node.keys)])
    if isinstance(node, TemporalJoin) or (isinstance(node, Binary) and not node.gives_right):
        left, ids = whole_rows(node.left)
        return replace(node, left=left), ids  # the right side of a look-up never changes an output row
    if not node.inputs or isinstance(node, (Changes, Records)):
        return node, node.ids
    below = [whole_rows(i) for i in node.inputs]
    made = node.over([tree for tree, _ in below])
    return made, made.ids & _Ids().union(*[ids for _, ids in below])


def _ids(columns: tuple[Column, ...]) -> _Ids:
    return frozenset(c.id for c in columns)


def _projected(node: Project) -> tuple[Node, _Ids]:
    below, ids = whole_rows(node.input)
    passed = {e.column: c.id for c, e in zip(node.outputs, node.exprs, strict=True) if e.column in ids}
    hidden = tuple(c for c in below.columns if c.id in ids - passed.keys())
    made = Project(below, (*node.outputs, *hidden), (*node.exprs, *map(read, hidden)))
    return made, frozenset(passed.values()) | _ids(hidden)


def _united(node: Union) -> tuple[Node, _Ids]:
    """The parts of a union, each with the additional columns of all parts, which are NULL if they belong to another
    part.
    """
    parts = [whole_rows(p)[0] for p in node.parts]
    further = [
        tuple(c for c in made.columns if c.id not in part.ids) for made, part in zip(parts, node.parts, strict=True)
    ]
    hidden = tuple(replace(c, nullable=True) for columns in further for c in columns)

    def padded(part: Node, made: Node, own: tuple[Column, ...]) -> Node:
        values: list[Scalar] = [read(c) if c.id in _ids(own) else null_of(c.type) for c in hidden]
        return Project(made, (*part.columns, *hidden), (*map(read, part.columns), *values))

    united = tuple(padded(*each) for each in zip(node.parts, parts, further, strict=True))
    made = Union(united, (*node.outputs, *hidden))
    return made, made.ids


_Ids = frozenset[str]

_NARROW: Final = (
    "boolean", "smallint", "integer", "date", "real", "bigint", "timestamp", "timestamptz", "time",
    "double precision", "numeric",
)  # fmt: skip


def prune_columns(tree: Node) -> Node:
    """The tree with only the columns that its root needs. The columns of the root stay.

    Project(x, Join(a(k, x, y), b(k, z)))   ->   Project(x, Join(a(k, x), b(k)))
    """
    return exactly(_prune(tree, tree.ids), tree.columns)


def _kept(columns: Sequence[Column], needed: _Ids) -> list[int]:
    """The indexes of the needed columns; if none is needed, of the narrowest column, because rows must be counted."""
    kept = [i for i, c in enumerate(columns) if c.id in needed]
    if kept or not columns:
        return kept
    order = {name: i for i, name in enumerate(_NARROW)}
    return [min(range(len(columns)), key=lambda i: (order.get(columns[i].type.name, len(order)), i))]


@singledispatch
def _prune(node: Node, needed: _Ids) -> Node:  # noqa: ARG001 - the default is for no known node
    raise AssertionError(type(node).__name__)


@_prune.register
def _(node: Scan, needed: _Ids) -> Node:
    kept = _kept(node.outputs, needed)
    outputs = tuple(node.outputs[i] for i in kept)
    ids = {c.id for c in outputs}
    return replace(
        node,
        outputs=outputs,
        source_names=tuple(node.source_names[i] for i in kept),
        key=node.key if ids.issuperset(node.key) else (),
    )


@_prune.register
def _(node: Clock, needed: _Ids) -> Node:  # noqa: ARG001 - it has one column
    return node


@_prune.register
def _(node: Values, needed: _Ids) -> Node:
    kept = _kept(node.outputs, needed)
    return Values(tuple(tuple(row[i] for i in kept) for row in node.rows), tuple(node.outputs[i] for i in kept))


@_prune.register
def _(node: Project, needed: _Ids) -> Node:
    kept = _kept(node.outputs, needed)
    exprs = tuple(node.exprs[i] for i in kept)
    below = frozenset[str]().union(*[e.columns for e in exprs])
    return Project(_prune(node.input, below), tuple(node.outputs[i] for i in kept), exprs)


@_prune.register
def _(node: Versions, needed: _Ids) -> Node:  # noqa: ARG001 - all views share the versions of a table, with all columns
    return node


@_prune.register
def _(node: Aggregate, needed: _Ids) -> Node:
    groups = len(node.keys)
    kept = [i for i in range(len(node.calls)) if node.outputs[groups + i].id in needed]
    if not kept and not groups:
        kept = [0]  # the one row of a global aggregate needs a column
    calls = tuple(node.calls[i] for i in kept)
    outputs = node.outputs[:groups] + tuple(node.outputs[groups + i] for i in kept)
    parts = [*node.keys, *[s for c in calls for s in c.scalars]]
    below = frozenset[str]().union(*[p.columns for p in parts])
    return Aggregate(_prune(node.input, below), node.keys, calls, outputs)


@_prune.register
def _(node: Unnest, needed: _Ids) -> Node:
    below = (needed | node.reads) & node.input.ids
    number = node.ordinality
    if number is not None and number.id not in needed and not (node.condition and number.id in node.condition.columns):
        number = None
    return replace(node, input=_prune(node.input, below), ordinality=number)


@_prune.register
def _(node: Union, needed: _Ids) -> Node:
    kept = _kept(node.outputs, needed)
    parts = []
    for part in node.parts:
        columns = [part.columns[i] for i in kept]
        parts.append(exactly(_prune(part, frozenset(c.id for c in columns)), columns))
    return Union(tuple(parts), tuple(node.outputs[i] for i in kept))


@_prune.register
def _(node: Window, needed: _Ids) -> Node:
    kept = [i for i, c in enumerate(node.outputs) if c.id in needed or node.delays]
    if not kept:
        return _prune(node.input, needed)
    slim = replace(node, calls=tuple(node.calls[i] for i in kept), outputs=tuple(node.outputs[i] for i in kept))
    below = (needed & node.input.ids) | slim.reads
    return replace(slim, input=_prune(node.input, below))


@_prune.register
def _(node: Arrivals, needed: _Ids) -> Node:
    scan = _prune(node.scan, needed)
    assert isinstance(scan, Scan)
    return replace(node, scan=scan)


@_prune.register
def _(node: Unary, needed: _Ids) -> Node:
    return node.over([_prune(node.input, (needed & node.input.ids) | node.reads)])


@_prune.register
def _(node: Binary, needed: _Ids) -> Node:
    reads = needed | node.reads
    return node.over([_prune(i, reads & i.ids) for i in node.inputs])


@_prune.register
def _(node: TemporalJoin, needed: _Ids) -> Node:
    """Left rows that may be deleted stay whole, because each deletes its own matches."""
    reads = needed | node.reads
    if revision(node.left) is None:
        return node.over([_prune(i, reads & i.ids) for i in node.inputs])
    looked_up = frozenset[str]().union(*[n.right.ids for n in walk(node.left) if isinstance(n, TemporalJoin)])
    left, identity = whole_rows(node.left)
    below = (node.left.ids - looked_up) | identity | (reads & node.left.ids)
    made = node.over([_prune(left, below), _prune(node.right, reads & node.right.ids)])
    kept = _kept(node.columns, needed)
    return exactly(made, [node.columns[i] for i in kept])


@_prune.register
def _(node: Records, needed: _Ids) -> Node:  # noqa: ARG001 - whether a record is a change depends on all of it
    return replace(node, input=exactly(_prune(node.input, node.input.ids), node.input.columns))


@_prune.register
def _(node: Changes, needed: _Ids) -> Node:
    """Causes read the same columns of a join's sides as the join, so that they share its state."""
    wanted = node.input.ids if node.whole else (needed & node.input.ids) | node.reads
    below = _prune(node.input, wanted)
    slim = (below, *(_prune(i, i.ids) for i in node.inputs[1:]))
    read = frozenset(c.id for tree in slim for n in walk(tree) for c in n.columns)

    def whole(part: Node) -> Node:
        if not isinstance(part, Changes) or not part.alone:
            return part
        return replace(part, input=exactly(part.input, [c for c in part.input.columns if c.id in read]), whole=True)

    causes = [transform_up(i, whole) for i in node.inputs[1:]]
    return node.over([below, *(exactly(_prune(i, i.ids), i.columns) for i in causes)])


@_prune.register
def _(node: TimeFilter, needed: _Ids) -> Node:
    below = _prune(node.input, needed | node.reads)
    return replace(node, input=below, same=tuple(i for i in node.same if i in below.ids))


_Scalars = tuple[Scalar, ...]


def spread_for_readers(tree: Node) -> Node:
    """The tree with `spread` of its joins and groups chosen for their readers."""
    return _spread(tree, ())


def _spread(node: Node, wish: _Scalars) -> Node:
    """`node` for a reader that needs rows in one bucket if they are equal in `wish` (over its columns), or in a part of
    it.
    """
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
    """The wish of a reader as the expressions that compute its columns."""
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
    sides = [
        s for s, kept in enumerate((node.keeps_left, node.keeps_right)) if kept
    ]  # the sides whose keys determine the distribution of rows
    for side, texts in ((0, _groups(node.left)), (1, _groups(node.right)), *((s, wished) for s in sides)):
        chosen = [i for i in chosen if pairs[i][side] in texts] or chosen if texts else chosen
    left = _spread(node.left, tuple(dict.fromkeys(node.keys[i].left for i in chosen)))
    right = _spread(node.right, tuple(dict.fromkeys(node.keys[i].right for i in chosen)))
    return replace(node, left=left, right=right, spread=tuple(chosen) if len(chosen) < len(pairs) else ())


def _copying(node: Join, wish: _Scalars) -> Join:
    """A join without keys: one side is copied, and the other side is distributed as the reader needs it."""
    copied_left = node.kind in ("inner", "right") and is_single_row(node.left) and not is_single_row(node.right)
    wide = node.right if copied_left else node.left
    own = tuple(w for w in wish if w.columns and w.columns <= wide.ids)
    left, right = (_spread(i, own if i is wide else ()) for i in (node.left, node.right))
    return replace(node, left=left, right=right, scatter=own)


def _groups(node: Node) -> frozenset[str]:
    """The texts of expressions by which the rows of `node` are already exchanged; others need another exchange."""
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
