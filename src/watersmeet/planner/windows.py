"""Lowering of window functions and of top-N."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from watersmeet.algebra.nodes import Node, SortKey, TopN, Window, WindowCall
from watersmeet.algebra.properties import is_by_arrival, lagging
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.watermarks import of_order, of_partition, of_scalar, watermarks
from watersmeet.circuit import operators
from watersmeet.circuit.operators import Operator
from watersmeet.circuit.sessions import CLOSED, FIRST, FIRST_ROW, KEY, SESSION, SessionWindow
from watersmeet.planner.builder import Builder, Stream, emit, identity, of_operator, positional
from watersmeet.values.watermarks import Watermark, both, shifted

_Ids = frozenset[str]
LowerInput = Callable[[Node, _Ids], Stream]
Grouped = Callable[[Operator, tuple[int, ...]], Operator]

#: The functions that are never NULL.
_NEVER_NULL = (
    "row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "count", *SESSION, *KEY, *FIRST_ROW,
    CLOSED, FIRST,
)  # fmt: skip


@dataclass(frozen=True)
class _Input:
    """The input of a window: the operator, the positions of its columns, and the positions of expressions by their
    identity.
    """

    operator: Operator
    columns: dict[str, int]
    scalars: dict[int, int]

    def at(self, scalar: Scalar) -> int:
        """The position of a requested scalar."""
        return self.scalars[id(scalar)]

    def order(self, keys: Sequence[SortKey]) -> tuple[operators.SortKey, ...]:
        """The sort keys over positions, with each column once."""
        found: dict[int, operators.SortKey] = {}
        for key in keys:
            position = self.at(key.value)
            found.setdefault(position, operators.SortKey(position, key.descending, key.nulls_first))
        return tuple(found.values())


class WindowLowering:
    """Lowers windows into `builder`.

    lower_input: lowers their inputs. grouped: brings the rows of a key into one bucket.
    """

    def __init__(self, builder: Builder, lower_input: LowerInput, grouped: Grouped) -> None:
        self.builder = builder
        self.lower_input = lower_input
        self.grouped = grouped

    def window(self, node: Window, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        calls = [(c, call) for c, call in zip(node.outputs, node.calls, strict=True) if c.id in needed or node.delays]
        if not calls:
            return self.lower_input(node.input, needed)
        scalars = [*node.partition, *(s for _, call in calls for s in call.scalars)]
        below = self._input(node.input, needed & node.input.ids, scalars)
        keys = tuple(dict.fromkeys(below.at(k) for k in node.partition))
        specs = list(dict.fromkeys((_spec(call, below), call.type) for _, call in calls))
        functions = tuple(spec for spec, _ in specs)
        op = self.grouped(below.operator, keys)
        asked = replace(node, calls=tuple(call for _, call in calls), outputs=tuple(c for c, _ in calls))
        append_only = op.append_only and is_by_arrival(asked)
        if not node.in_order and not node.delays:
            op = self._kept(asked, op, keys, below)
        fields = [(f.type, f.nullable) for f in op.schema]
        fields += [(kind, spec.function not in _NEVER_NULL) for spec, kind in specs]
        window = operators.Window((op.id,), positional(fields), append_only, keys=keys, functions=functions)
        if node.delays:
            window = SessionWindow(window.inputs, window.schema, append_only, keys, functions, node.idle_us)
        made = self.builder.add(_sliding(asked, window, below) if node.in_order else window)
        found = [(c, below.columns[c.id]) for c in node.input.columns if c.id in below.columns]
        if functions[0].function == CLOSED:
            age = {k.value.column or "" for k in calls[0][1].order}
            self.builder.drops_late(made, node.input, found, calls[0][1].arguments[1].column or "", age)
        found += [(c, len(op.schema) + specs.index((_spec(call, below), call.type))) for c, call in calls]
        return of_operator(made, found)

    def _kept(self, node: Window, op: Operator, keys: tuple[int, ...], below: _Input) -> Operator:
        """The arrangement of the rows that the window may still need."""
        stage, null_safe = self.builder.placement.arrival(op.id), (True,) * len(keys)
        last = lagging(node) if op.append_only else None
        if last is not None:
            newest_first = tuple(replace(k, descending=not k.descending) for k in below.order(node.calls[0].order))
            return self.builder.arrange(op, keys, null_safe, stage, depth=last, order=newest_first)
        newest = of_order(node)
        if newest is not None:
            time, retain, depth = newest
            return self.builder.arrange(
                op, keys, null_safe, stage, time=below.at(time), retain=retain, newest=True, depth=depth
            )
        closed, retain = _closed(node, below)
        return self.builder.arrange(op, keys, null_safe, stage, time=closed, retain=retain)

    def topn(self, node: TopN, needed: _Ids) -> Stream:
        """The stream of `node` with at least the columns `needed`."""
        below = self._input(node.input, needed, node.scalars)
        keys = tuple(dict.fromkeys(below.at(k) for k in node.partition))
        op = self.grouped(below.operator, keys)
        schema = positional((f.type, f.nullable) for f in op.schema)
        time, retain = _closed(node, below)
        made = self.builder.add(
            operators.TopN(
                (op.id,),
                schema,
                append_only=False,
                keys=keys,
                order=below.order(node.order),
                limit=node.limit,
                offset=node.offset,
                with_ties=node.with_ties,
                time=time,
                retain=retain,
            )
        )
        return of_operator(made, [(c, below.columns[c.id]) for c in node.columns if c.id in below.columns])

    def _input(self, node: Node, needed: _Ids, scalars: Sequence[Scalar]) -> _Input:
        stream = self.lower_input(node, needed.union(*[s.columns for s in scalars]))
        resolved = {id(s): stream.resolve(s) for s in scalars}
        op, positions = emit(self.builder, stream, [stream.values[i] for i in sorted(needed)] + list(resolved.values()))
        return _Input(
            op,
            {i: positions[identity(stream.values[i])] for i in needed},
            {i: positions[identity(s)] for i, s in resolved.items()},
        )


def _closed(node: Window | TopN, below: _Input) -> tuple[int | None, Watermark]:
    """The column that determines which partitions are final, and the watermark above them."""
    found = of_partition(node)
    return (None, ()) if found is None else (below.at(node.partition[found[0]]), found[1])


def _sliding(node: Window, window: operators.Window, below: _Input) -> operators.SlidingWindow:
    """The window over rows that arrive in order."""
    read = {k.column for k in window.functions[0].order}.union(window.keys, *map(_read, window.functions))
    time, retain = _still_needed(node, node.calls)
    return operators.SlidingWindow(
        window.inputs,
        window.schema,
        append_only=True,
        keys=window.keys,
        functions=window.functions,
        kept=tuple(sorted(read)),
        time=None if time is None else below.at(time),
        retain=retain,
        depth=_depth(node.calls),
    )


def _read(spec: operators.WindowSpec) -> set[int]:
    """(the columns of other rows that a function reads, the columns of its row)."""
    frame = spec.frame
    return {p for p in (*spec.arguments, spec.filter, frame.value, frame.low, frame.high) if p is not None}


def _still_needed(node: Window, calls: Sequence[WindowCall]) -> tuple[Scalar | None, Watermark]:
    """(the time by which the rows of ranges are ordered, the watermark below which later rows don't need them)."""
    frames = [c.frame for c in calls]
    value = frames[0].value
    marks = watermarks(node.input)
    if value is None or any(f.value is None or (f.start is None and f.low is None) for f in frames):
        return None, ()
    bounds = [
        of_scalar(f.low, marks) if f.low is not None else shifted(of_scalar(value, marks), f.start or 0) for f in frames
    ]
    return (value, both(*bounds)) if all(bounds) else (None, ())


def _depth(calls: Sequence[WindowCall]) -> int | None:
    """The number of earlier rows of a partition that a new row reads; None for any number, or for those of a range."""
    found = []
    for call in calls:
        frame = call.frame
        before = None if frame.start is None else -frame.start
        if call.function == "lag" and not call.skips_nulls and (before is None or call.number < before):
            before = call.number
        if frame.mode != "rows" or before is None:
            return None
        found.append(before)
    return max(1, *found)


def _spec(call: WindowCall, below: _Input) -> operators.WindowSpec:
    frame = call.frame
    value, low, high = (None if s is None else below.at(s) for s in (frame.value, frame.low, frame.high))
    return operators.WindowSpec(
        call.function,
        tuple(below.at(a) for a in call.arguments),
        call.number,
        None if call.filter is None else below.at(call.filter),
        below.order(call.order),
        operators.WindowFrame(frame.mode, frame.start, frame.end, frame.exclude, value, low, high),
        call.skips_nulls,
        call.distinct,
    )
