"""Rows of a stream that are output when their window closes by a later row of their substream, and groups of them.

Timeplus, "Partition data", "Session window aggregation". A substream has the rows with equal values of its partition,
and its own clock: the greatest time of its rows so far. `circuit.sessions` has the rules of each function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.arrivals import Window, WindowCall, WindowFrame
from watersmeet.algebra.nodes import Aggregate, Column, Filter, Node, Project, SortKey, TimeFilter
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import read, with_inputs
from watersmeet.binder.clauses import closing
from watersmeet.binder.clauses.aggregates import Grouping
from watersmeet.binder.clauses.timewindows import StreamOrder, arrivals
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.expressions.context import RowOrder
from watersmeet.values.types import BIGINT, BOOLEAN, SqlType

#: The functions of sessions with the names of the columns that they become.
_SESSION: Final = {
    "session_start": "window_start", "session_end": "window_end", "session_epoch": "_session_epoch",
    "session_seq": "_session_seq",
}  # fmt: skip


def by_arrival(
    rows: Node, node: exp.Expression, env: Environment, binding: Binding
) -> tuple[Node, tuple[SortKey, ...]]:
    """All rows with the columns of their arrival, and the order from the oldest to the newest. Raises
    FEATURE_NOT_SUPPORTED for rows without that order.
    """
    found = arrivals(rows, binding, unnested=True)
    if found is None:
        raise env.not_supported(
            "a window that closes by later rows, over rows that change or without an order of arrival",
            node,
            hint="Read an append stream, or a query that only filters or computes its rows.",
        )
    return found[0], tuple(SortKey(read(c), descending=True) for c in found[1])


def closed(
    rows: Node,
    partition: tuple[Scalar, ...],
    times: tuple[Scalar, Scalar],
    node: exp.Expression,
    env: Environment,
    binding: Binding,
) -> Node:
    """The rows whose window has closed by a later row of their substream. times: those of a row and of its window's
    end.
    """
    rows, order = by_arrival(_timed(rows, times[0]), node, env, binding)
    assert binding.closing is not None
    idle_us = binding.closing.idle_us or 0
    functions = {"window_closed": BOOLEAN} | (dict.fromkeys(("window_epoch", "window_seq"), BIGINT) if idle_us else {})
    calls = [WindowCall(f, times, binding.closing.delay_us, None, order, _FRAME, kind) for f, kind in functions.items()]
    made = [binding.new_column(f"_{f}", kind, nullable=False) for f, kind in functions.items()]
    binding.collected.closed = True
    return Window(rows, partition, tuple(calls), tuple(made), idle_us=idle_us)


_FRAME: Final = WindowFrame("rows", None, 0)


def _timed(rows: Node, time: Scalar) -> Node:
    """The rows with a time."""
    if not time.nullable:
        return rows
    present = exp.Not(this=exp.Is(this=time.expression.copy(), expression=exp.null()))
    return Filter(rows, Scalar(present, BOOLEAN, nullable=False))


def sessions(
    rows: Node,
    partition: tuple[Scalar, ...],
    arguments: tuple[Scalar, Scalar, Scalar],
    lengths_us: tuple[int, int],
    kept: int,
    node: exp.Expression,
    env: Environment,
    binding: Binding,
) -> tuple[Node, tuple[Column, Column]]:
    """The rows of closed sessions, and the columns with the start and the end of their session. lengths_us: the gap and
    the greatest length.
    """
    rows, order = by_arrival(_timed(rows, arguments[0]), node, env, binding)
    frame = WindowFrame("range", *lengths_us)
    time = arguments[0].type
    types: Mapping[str, SqlType] = {"session_start": time, "session_end": time}
    calls = [WindowCall(f, arguments, kept, None, order, frame, types.get(f, BIGINT)) for f in _SESSION]
    made = tuple(binding.new_column(name, types.get(f, BIGINT), nullable=False) for f, name in _SESSION.items())
    binding.collected.closed = True
    idle_us = 0 if binding.closing is None else binding.closing.idle_us or 0
    return Window(rows, partition, tuple(calls), made, idle_us=idle_us), (made[0], made[1])


def expiring(
    rows: Node,
    partition: tuple[Scalar, ...],
    time: Scalar,
    lengths_us: tuple[int, int],
    node: exp.Expression,
    env: Environment,
    binding: Binding,
    *,
    only: bool,
) -> Node:
    """The rows of expired keys. lengths_us: the greatest span of a key's times, and the time without rows after which
    it expires, or 0. only: whether to output only the keys with a greater span.
    """
    rows, order = by_arrival(_timed(rows, time), node, env, binding)
    frame = WindowFrame("range", 0, lengths_us[0])
    calls = tuple(WindowCall(f, (time,), int(only), None, order, frame, BIGINT) for f in _KEY)
    made = tuple(binding.new_column(f"_{f}", BIGINT, nullable=False) for f in _KEY)
    binding.collected.closed = True
    return Window(rows, partition, calls, made, idle_us=lengths_us[1])


_KEY: Final = ("key_epoch", "key_seq")


def first_rows(
    rows: Node,
    partition: tuple[Scalar, ...],
    time: Scalar,
    length_us: int,
    node: exp.Expression,
    env: Environment,
    binding: Binding,
) -> Node:
    """The rows that no row of their key precedes whose time is less than `length_us` older."""
    rows, order = by_arrival(_timed(rows, time), node, env, binding)
    true = Scalar(exp.true(), BOOLEAN, nullable=False)
    false = Scalar(exp.false(), BOOLEAN, nullable=False)
    frame = WindowFrame("range", _NEVER_US, length_us)
    call = WindowCall("session_first", (time, true, false), 3, None, order, frame, BOOLEAN)
    return Window(rows, partition, (call,), (binding.new_column("_first", BOOLEAN, nullable=False),))


#: A gap that no two rows have.
_NEVER_US: Final = 1 << 61


def first_by_arrival(
    rows: Node, partition: tuple[Scalar, ...], count: int, node: exp.Expression, env: Environment, binding: Binding
) -> Node:
    """The `count` rows of each partition that arrived first."""
    rows, order = by_arrival(rows, node, env, binding)
    number = binding.new_column("_number", BIGINT, nullable=False)
    rows = Window(rows, partition, (WindowCall("row_number", (), 0, None, order, _FRAME, BIGINT),), (number,))
    first = exp.LTE(this=read(number).expression, expression=exp.Literal.number(count))
    return Filter(rows, Scalar(first, BOOLEAN, nullable=False))


def with_whole_groups(node: Node, binding: Binding) -> Node:
    """The tree, in which groups of closed windows are output once.

    A group has all its rows in one epoch if its keys have the window and the partition of its rows. Two sessions of a
    substream may have equal times, a key may expire several times, and a window may begin again after its TIMEOUT; so
    these groups have the arrival of their first row as a further key.
    """
    node = with_inputs(node, [with_whole_groups(i, binding) for i in node.inputs])
    if not isinstance(node, Aggregate) or not node.keys or node.spread or node.whole:
        return node
    path, below = [], node.input
    while isinstance(below, (Filter, Project)):
        path.append(below)
        below = below.input
    if not isinstance(below, Window) or not below.delays:
        return node
    keys = {k.expression.sql() for k in _resolved(node.keys, path)}
    wanted = {p.expression.sql() for p in below.partition}
    if below.calls[0].function == "window_closed":
        start = below.calls[0].arguments[1].columns
        bounds = {read(c).expression.sql() for c in below.input.columns if c.name in ("window_start", "window_end")}
        bounds |= {exp.column(exp.to_identifier(i)).sql() for i in start}
        if not (wanted <= keys and keys & bounds):
            return node
        return _numbered(node, below.outputs[1:], binding)
    if below.calls[0].function not in ("session_start", "key_epoch"):
        return node
    starts = {read(c).expression.sql() for c in below.outputs[:-2]}
    if not wanted <= keys or (starts and not keys & starts):
        return node
    return _numbered(node, below.outputs[-2:], binding)


def final_groups(groups: Aggregate, binding: Binding) -> Node:
    """The groups of a SELECT, each output once if `binding.closing` requires it. Raises EMIT_NOT_POSSIBLE."""
    collected, ended = binding.collected, binding.closing
    if collected.closed:
        found = with_whole_groups(groups, binding)
        assert isinstance(found, Aggregate)
        groups = found
    if ended is None or not ended.final or _delays(groups.input):
        return groups
    return closing.final_groups(groups, 0 if collected.delayed else ended.delay_us)


def final_rows(rows: Node, binding: Binding) -> Node:
    """The rows of a SELECT without groups, each output once if `binding.closing` requires it. Raises
    EMIT_NOT_POSSIBLE.
    """
    collected, ended = binding.collected, binding.closing
    if ended is None or not ended.final or _delays(rows):
        return rows
    found, notices = closing.once_final(rows, 0 if collected.delayed else ended.delay_us)
    for text in notices:
        binding.notice(text)
    return found


def _delays(node: Node) -> bool:
    """Whether the rows are output when a later row of their substream closes their window."""
    if isinstance(node, Window) and node.delays:
        return True
    return not isinstance(node, (Aggregate, TimeFilter)) and any(map(_delays, node.inputs))


class FinalOrder(RowOrder):
    """The order in which the groups of a SELECT are output, if each is output once: by time, then by the other keys."""

    def __init__(self, rows: StreamOrder, groups: Grouping, binding: Binding) -> None:
        self._rows, self._groups, self._binding = rows, groups, binding

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        ended, groups = self._binding.closing, self._groups
        if ended is None or not ended.final or groups.flags or _delays(self._rows.relation):
            return None
        keys = groups.key_columns
        time = closing.time_of_groups(Aggregate(self._rows.relation, groups.keys, (), keys))
        return None if time is None else tuple(SortKey(read(c)) for c in (time, *keys) if c is time or c != time)


def _numbered(node: Aggregate, number: tuple[Column, ...], binding: Binding) -> Aggregate:
    """The groups, whose rows all arrive in one epoch, with further keys that no later group has."""
    input_ = _carrying(node.input, number)
    made = tuple(binding.new_column(c.name, c.type, c.nullable) for c in number)
    count = len(node.keys)
    outputs = (*node.outputs[:count], *made, *node.outputs[count:])
    return replace(node, input=input_, keys=(*node.keys, *map(read, number)), outputs=outputs, whole=True)


def _resolved(keys: Sequence[Scalar], path: Sequence[Node]) -> list[Scalar]:
    """The keys as expressions over the input of the last node of a path of filters and projections."""
    found = list(keys)
    for node in path:
        if isinstance(node, Project):
            values = {c.id: e.expression for c, e in zip(node.outputs, node.exprs, strict=True)}
            found = [k.substitute(values) for k in found]
    return found


def _carrying(node: Node, columns: Sequence[Column]) -> Node:
    """Filters and projections that also have columns of their inputs."""
    if isinstance(node, Filter):
        return replace(node, input=_carrying(node.input, columns))
    if isinstance(node, Project):
        below = _carrying(node.input, columns)
        missing = [c for c in columns if c.id not in node.ids]
        return Project(below, (*node.outputs, *missing), (*node.exprs, *map(read, missing)))
    return node
