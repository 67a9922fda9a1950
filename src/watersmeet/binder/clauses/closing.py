"""Rows that are output once, when the watermark has passed their time (EMIT ON WINDOW CLOSE), and their order.

RisingWave, "Emit on window close"; Timeplus, "Streaming aggregations", "EMIT". The bound never decreases, so rows of
later times are output later; rows of equal times are output together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from watersmeet.algebra.nodes import (
    LOOKING_AHEAD,
    Aggregate,
    Binary,
    Column,
    Filter,
    Node,
    Project,
    Scan,
    TimeFilter,
    Union,
    Unnest,
    Window,
)
from watersmeet.algebra.properties import keeps_order
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import read, walk, with_inputs
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.errors import Error, error
from watersmeet.values.types import BOOLEAN
from watersmeet.values.watermarks import NOW, Watermark, delayed

_NONE = frozenset[str]()

#: Sets of column ids; a row without a partner has NULL in all columns of one set.
Paddings = frozenset[frozenset[str]]


def paddings(node: Node) -> Paddings:
    """The sets of columns of `node` that are NULL together in rows without a partner.

    Only the largest sets are needed: a column that is NULL without one partner is also NULL if more are missing.

        Join full, a, b           ->  {columns of a}, {columns of b}
        Join left, a, b           ->  {columns of b}
    """
    if isinstance(node, Project):
        return _greatest(_made(node.outputs, node.exprs, p) for p in paddings(node.input))
    if isinstance(node, Aggregate):
        return _greatest(_made(node.outputs[: len(node.keys)], node.keys, p) for p in paddings(node.input))
    if isinstance(node, Union):
        return _greatest(
            frozenset(o.id for c, o in zip(part.columns, node.outputs, strict=True) if c.id in p)
            for part in node.parts
            for p in paddings(part)
        )
    if isinstance(node, Unnest) and node.outer:
        made = frozenset(c.id for c in node.elements)
        return _greatest(p | made for p in paddings(node.input))
    if isinstance(node, Binary) and node.gives_right:
        return _joined(node)
    return paddings(node.inputs[0]) if node.inputs else frozenset([_NONE])


def _joined(node: Binary) -> Paddings:
    left, right = paddings(node.left), paddings(node.right)
    found = [] if node.keeps_right else [p | node.right.ids for p in left]
    if not node.keeps_left:
        found += [p | node.left.ids for p in right]
    return _greatest(found or [a | b for a in left for b in right])


def _made(outputs: Iterable[Column], exprs: Iterable[Scalar], padding: frozenset[str]) -> frozenset[str]:
    """The outputs that read only columns of `padding`, and so are NULL with them."""
    return frozenset(c.id for c, e in zip(outputs, exprs, strict=True) if e.columns and e.columns <= padding)


def _greatest(found: Iterable[frozenset[str]]) -> Paddings:
    distinct = set(found)
    return frozenset(p for p in distinct if not any(p < q for q in distinct))


def once_final(tree: Node, delay_us: int = 0) -> tuple[Node, tuple[str, ...]]:
    """The rows of `tree`, each output once the watermark minus the delay has passed its time; and notices.

    The time of a row is its first column with a watermark. Raises EMIT_NOT_POSSIBLE.
    """
    groups = _groups(tree)
    if groups is not None:
        _check_groups(groups)
    rewritten = rewrite(tree)
    shown = watermarks(rewritten)
    timed = [c for c in tree.columns if c.id in shown]
    if timed and {t.source for t in shown[timed[0].id]} == {NOW}:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "EMIT ON WINDOW CLOSE is not possible: rows go as time passes, before they are final",
            detail=f'The comparison with now() bounds the column "{timed[0].name}".',
            hint="Make a view without that condition, and another one over it that compares with now().",
        )
    notices: tuple[str, ...] = ()
    if any(not _related(shown[timed[0].id], shown[c.id]) for c in timed):
        notices = (
            f"There are multiple unrelated watermark columns in the query, the first one `{timed[0].name}` is used.",
        )
    if timed:
        return _once_past(tree, timed, rewritten, delay_us), notices
    if groups is not None:  # the output lacks the time of the groups
        return _below(tree, groups, delay_us), notices
    filled = _over_final_rows(tree, delay_us)
    if filled is not None:
        return filled, notices
    raise error(
        "EMIT_NOT_POSSIBLE",
        "The query cannot be executed in Emit-On-Window-Close mode.",
        hint="Try define a watermark column in the source, or avoid aggregation without GROUP BY",
        detail="None of the output columns has a watermark." + _read_times(tree),
    )


def _over_final_rows(node: Node, delay_us: int) -> Node | None:
    """The rows of window functions that look ahead, or of GAP_FILL, over only final rows. A row is output when the rows
    of its frame have followed; a gap is filled when the row after it is final. None for other rows, and if the time has
    no watermark.
    """
    if isinstance(node, Project | Filter | Unnest):
        below = _over_final_rows(node.input, delay_us)
        return None if below is None else replace(node, input=below)
    following = _following(node) if isinstance(node, Window) else None
    if following is None:
        return None
    assert isinstance(node, Window)
    rewritten = rewrite(node.input)
    time = node.calls[0].order[0].value.column
    timed = [c for c in node.input.columns if c.id == time and c.id in watermarks(rewritten)]
    if not timed:
        return None
    final = replace(node, input=_once_past(node.input, timed, rewritten, delay_us))
    if node.gaps:
        return final
    mark = Column("$follows", "follows", BOOLEAN)
    true = Scalar(exp.true(), BOOLEAN, nullable=False)
    lead = replace(node.calls[0], function="lead", arguments=(true,), number=following, type=BOOLEAN, filter=None)
    marked = replace(final, calls=(*node.calls, lead), outputs=(*node.outputs, mark))
    complete = Filter(marked, Scalar(exp.func("coalesce", column_ref(mark.id), exp.false()), BOOLEAN, nullable=False))
    return Project(complete, node.columns, tuple(map(read, node.columns)))


def _following(node: Window) -> int | None:
    """The number of rows that must follow a row until none of its values changes; 0 for GAP_FILL, None if unknown."""
    found, order = 0, node.calls[0].order
    for call in node.calls:
        if call.varying is not None or call.order != order or not order or order[0].descending:
            return None
        if node.gaps or (call.looks_back and call.function != "lead"):
            continue
        if call.skips_nulls or call.function in LOOKING_AHEAD:
            return None
        if call.function in ("lag", "lead"):
            found = max(found, call.number if call.function == "lead" else -call.number)
        elif call.frame.mode == "rows" and call.frame.end is not None:
            found = max(found, call.frame.end)
        else:
            return None
    return found


def final_groups(groups: Aggregate, delay_us: int) -> Node:
    """The groups, each output once the watermark minus the delay has passed its time. Raises EMIT_NOT_POSSIBLE."""
    _check_groups(groups)
    return _below(groups, groups, delay_us)


def time_of_groups(groups: Aggregate) -> Column | None:
    """The key by which `final_groups` orders the groups; None if they are never final."""
    keys = groups.outputs[: len(groups.keys)]
    return next(iter(_timed(keys, watermarks(rewrite(groups)))), None)


def in_order_of_time(node: Node) -> tuple[Node, tuple[Column, ...]] | None:
    """The rows of `node`, which are output in the order of a time, with the columns of this order, the oldest first:
    the time, then the other keys of groups. None for rows in another order.
    """
    if isinstance(node, TimeFilter):
        if not node.final or node.comparison != "<":
            return None
        time = next(c for c in node.columns if c.id == node.column)
        below = node.input
        keys = below.outputs[: len(below.keys)] if isinstance(below, Aggregate) else below.columns
        return node, (time, *(c for c in keys if c.id != time.id))
    if not isinstance(node, (Filter, Project, Window)) or (isinstance(node, Window) and not keeps_order(node)):
        return None
    found = in_order_of_time(node.input)
    if found is None:
        return None
    below, order = found
    if not isinstance(node, Project):
        return replace(node, input=below), order
    missing = [c for c in order if read(c) not in node.exprs]
    passed = dict(zip((e.column for e in node.exprs), node.outputs, strict=True))
    outputs, exprs = (*node.outputs, *missing), (*node.exprs, *map(read, missing))
    return Project(below, outputs, exprs), tuple(passed.get(c.id, c) for c in order)


def _read_times(tree: Node) -> str:
    """A sentence about the watermarks that the query reads but does not output; empty if there are none."""
    times = {
        f'"{s.relation_name}.{c.name}"': None
        for s in walk(tree)
        if isinstance(s, Scan)
        for c in s.outputs
        if c.id in dict(s.watermarks)
    }
    if not times:
        return ""
    read_too = "has one, but is" if len(times) == 1 else "have one, but are"
    return (
        f" {' and '.join(times)} {read_too} not selected, or may still change: a join keeps the watermarks "
        f"of its sides "
        "only where its conditions bound their times by each other."
    )


def _once_past(tree: Node, timed: Sequence[Column], rewritten: Node, delay_us: int) -> Node:
    """The rows of `tree`, output once the first of the columns `timed` is below its watermark. rewritten: the rewritten
    form of `tree`.

    If that column may be NULL because of an outer join, the first column without such NULLs counts. If all columns may
    (FULL JOIN), the first one that is not NULL counts, so that a row without a partner also has a time. Raises
    EMIT_NOT_POSSIBLE if all columns may be NULL in a row without a partner, because that row would never be output.
    """
    shown, padded = watermarks(rewritten), paddings(rewritten)
    ids = {c.id for c in timed}
    if any(ids <= p for p in padded):
        raise _without_time(tree, timed)
    whole = [c for c in timed if not any(c.id in p for p in padded)]
    if whole or len(timed) == 1:
        time = (whole or timed)[0]
        return TimeFilter(tree, time.id, "<", delayed(shown[time.id], delay_us), final=True)
    first, *others = timed
    cast = [
        exp.cast(column_ref(c.id), first.type.duckdb, dialect="duckdb") if c.type != first.type else column_ref(c.id)
        for c in others
    ]
    value = Scalar(exp.Coalesce(this=column_ref(first.id), expressions=cast), first.type)
    time = Column("$time", "time", first.type)
    with_time = Project(tree, (*tree.columns, time), (*(read(c) for c in tree.columns), value))
    past = TimeFilter(with_time, time.id, "<", delayed(of_scalar(value, shown), delay_us), final=True)
    return Project(past, tree.columns, tuple(read(c) for c in tree.columns))


def _without_time(tree: Node, timed: Sequence[Column]) -> Error:
    """The error for a query whose rows without a partner have no time. Its hint names columns to use."""
    word, node = "Select", tree
    while isinstance(node, (Aggregate, Filter, Project)):
        word = "GROUP BY" if isinstance(node, Aggregate) else word
        node = node.input
    rewritten = rewrite(node)
    shown = watermarks(rewritten)
    whole = [next((c.id for c in node.columns if c.id in shown and c.id not in p), None) for p in paddings(rewritten)]
    names = [f'"{c.name}" of "{_origin(node, c.id)}"' for c in node.columns if c.id in whole]
    columns = f"column {_listed(timed)} is" if len(timed) == 1 else f"columns {_listed(timed)} are"
    return error(
        "EMIT_NOT_POSSIBLE",
        "EMIT ON WINDOW CLOSE is not possible: rows without a partner have no time",
        detail=f"In rows to which an outer join adds NULLs the {columns} NULL, so these rows would never be output.",
        hint="Write JOIN: only rows with partners have a time here."
        if None in whole
        else f"{word} {' and '.join(names)}, too.",
    )


def _listed(columns: Sequence[Column]) -> str:
    return " and ".join(f'"{c.name}"' for c in columns)


def _origin(node: Node, column: str) -> str:
    """The name of the relation from which a column of `node` is read, or the name of the column."""
    while node.inputs:
        if isinstance(node, Project):
            made = next((e for c, e in zip(node.outputs, node.exprs, strict=True) if c.id == column), None)
            column = column if made is None else min(made.columns, default=column)
        node = next((i for i in node.inputs if column in i.ids), node.inputs[0])
    return node.relation_name if isinstance(node, Scan) else column


def _groups(node: Node) -> Aggregate | None:
    """The aggregate whose groups are the rows of `node`."""
    while isinstance(node, (Project, Filter)):
        node = node.input
    return node if isinstance(node, Aggregate) else None


def _check_groups(groups: Aggregate) -> None:
    if not groups.keys:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "The query cannot be executed in Emit-On-Window-Close mode.",
            hint="Try define a watermark column in the source, or avoid aggregation without GROUP BY",
            detail="An aggregate without GROUP BY is never final.",
        )
    marks = watermarks(rewrite(groups))
    timed = _timed(groups.outputs[: len(groups.keys)], marks)
    if not timed:
        raise error(
            "EMIT_NOT_POSSIBLE",
            "Emit-On-Window-Close mode requires a watermark column in GROUP BY.",
            hint="Please try to GROUP BY a watermark column",
        )
    if any(not _related(marks[timed[0].id], marks[c.id]) for c in timed):
        raise error(
            "EMIT_NOT_POSSIBLE",
            "Emit-On-Window-Close mode requires that watermark columns in GROUP BY are derived from "
            "the same upstream column.",
            hint="Please try to remove undesired columns from GROUP BY",
        )


def _below(node: Node, groups: Aggregate, delay_us: int) -> Node:
    """`node` over only those of its `groups` that are final."""
    if node is groups:
        rewritten = rewrite(groups)
        return _once_past(groups, _timed(groups.outputs, watermarks(rewritten)), rewritten, delay_us)
    return with_inputs(node, [_below(i, groups, delay_us) for i in node.inputs])


def _timed(columns: Sequence[Column], marks: Mapping[str, Watermark]) -> list[Column]:
    return [c for c in columns if c.id in marks]


def _related(one: Watermark, other: Watermark) -> bool:
    """True if two watermarks are derived from the same sources."""
    return {t.source for t in one} == {t.source for t in other}
