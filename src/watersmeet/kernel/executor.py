"""Runs one stage of a circuit for one bucket (or, in stage 0, for one task) in one epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from watersmeet.circuit.circuit import Circuit, Roles
from watersmeet.circuit.epochs import Fill, Live, Mode, Recompute
from watersmeet.circuit.operators import (
    Aggregate,
    Arrange,
    AsofJoin,
    Exchange,
    Join,
    Map,
    Operator,
    Scan,
    Sink,
    Union,
    Upsert,
    Versions,
)
from watersmeet.errors import error
from watersmeet.kernel.context import StepContext, check_output, mark_failing, no_changes
from watersmeet.kernel.evaluation.expressions import EVALUATOR, MapOf
from watersmeet.kernel.metrics import Counters, DroppedRows, Failure, OperatorMetrics, Orphan, Stopwatch, Worker
from watersmeet.kernel.operators import PIECEWISE, STATEFUL, STEPS, TAKE_SLICES, UNPROMPTED, OperatorOutput
from watersmeet.kernel.operators.aggregate import gather, gathered
from watersmeet.kernel.operators.arrange import ranges, replay
from watersmeet.kernel.operators.rowwise import history_keys, keeps_all
from watersmeet.kernel.runs.delta import Delta, Sliced, Slicing, consolidate, slices_of, without_cancelling
from watersmeet.kernel.runs.frames import Frame, Spool, consolidated, count_rows, netted, receive, send, spooled, whole
from watersmeet.kernel.runs.matching import Arranged, TooManyRowsError
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.state import ScopedState, StageState, State
from watersmeet.values.types import Schema, arrow_schema
from watersmeet.values.watermarks import NOW

#: The maximum number of slices of a bucket's input that are processed at once: two million rows, the largest epoch.
_MANY_SLICES: Final = 2


@dataclass(frozen=True)
class MostRows:
    """The maximum number of rows that a join may output in one epoch; 0 for no limit.

    reported: the limit for all buckets; above it the join reports the key with the most rows. made: the limit for one
    bucket.
    """

    reported: int
    made: int


_ANY_NUMBER: Final = MostRows(0, 0)

#: The kinds of operators that process each row separately.
_BY_ROW: Final = PIECEWISE | {"scan", "union", "exchange"}

#: The maximum number of pairs of a row and a map that are computed in one step.
_MOST_PAIRS: Final = 1 << 20


@dataclass(frozen=True)
class EpochContext:
    """The context of a stage in one epoch.

    watermarks, before, slicing: see `StepContext`. most_rows: the limits of joins; others have none. stopped: operators
    of failed views, which do not run but keep their state. packed: whether large frames are packed into fewer bytes.
    roles: for each exchange, where the rows of split keys go. complete: whether no history is left to read.
    """

    epoch: int
    mode: Mode = field(default_factory=Live)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    most_rows: Mapping[str, MostRows] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    slicing: Slicing = field(default_factory=Slicing)
    packed: bool = False
    roles: Mapping[str, Roles] = field(default_factory=dict)
    complete: bool = True

    def runs(self, operator_id: str) -> bool:
        """True if the operator runs in this epoch."""
        return self.mode.runs(operator_id) and operator_id not in self.stopped


#: A function that receives the changes of a relation (its id) in pieces, in which no row has diffs of both signs. It
#: must read all pieces.
Publish = Callable[[str, Iterable[Delta]], None]


@dataclass(frozen=True)
class StageResult:
    """The result of a stage. frames: those for later stages. published: the changes of each relation, unless `Publish`
    received them.

    metrics: those of each operator that ran. hottest: the hottest key of each join that may exceed its limit; if this
    bucket already exceeds it, the join's output is empty, and all downstream output is invalid. orphans: for each
    upsert, the updates that found no row of their key. failures: for each operator, the failed parts of its
    expressions. late: for each operator, the rows that it dropped as late.
    """

    frames: list[Frame]
    published: dict[str, Delta] = field(default_factory=dict)
    metrics: dict[str, OperatorMetrics] = field(default_factory=dict)
    hottest: dict[str, HottestKey] = field(default_factory=dict)
    orphans: dict[str, list[Orphan]] = field(default_factory=dict)
    failures: dict[str, tuple[Failure, ...]] = field(default_factory=dict)
    late: dict[str, list[DroppedRows]] = field(default_factory=dict)


@dataclass(frozen=True)
class HottestKey:
    """The key with the most output rows of a join. values: as texts, None for NULL; empty if the join has no key."""

    rows: int
    values: tuple[str | None, ...]


def run_stage(
    circuit: Circuit,
    stage: int,
    bucket: int,
    sources: Mapping[str, Sequence[Delta]],
    frames: Iterable[Frame],
    state: StageState,
    ctx: EpochContext,
    publish: Publish | None = None,
) -> StageResult:
    """Runs the operators of `stage` whose input changed. `bucket` is the number of the task in a stage 0 that has no
    state.

    sources: changes with columns c0, c1, …, by the id of their scan, or of an operator that stored content replaces.
    frames: those for this bucket, in any order. publish: receives the changes of sinks; by default the result contains
    them, in a file if they are large. The state is changed, not persisted. Raises STATE_MISMATCH if an operator that
    must have state has none.
    """
    return _Stage(circuit, stage, bucket, sources, state, ctx, publish).run(frames)


class _Outputs:
    """The outputs that readers in a stage have not read yet; the last reader releases them. changed: the operators that
    read changes.
    """

    def __init__(self, circuit: Circuit, stage: int, ctx: EpochContext) -> None:
        self.changed: set[str] = set()
        self._circuit, self._stage, self._ctx = circuit, stage, ctx
        self._held: dict[str, OperatorOutput] = {}
        self._left: dict[str, int] = {}

    def readers(self, operator_id: str) -> list[str]:
        """The operators of the stage that run and read the output, once for each of their inputs."""
        by_id, stages = self._circuit.by_id, self._circuit.stages
        found = [r for r in self._circuit.consumers[operator_id] if stages[r] == self._stage and self._ctx.runs(r)]
        return [r for r in found for i in by_id[r].inputs if i == operator_id]

    def put(self, operator_id: str, output: OperatorOutput, readers: Sequence[str] | None = None) -> None:
        """Keeps an output for its `readers`. Those of an output without changes need not run."""
        changes = _has_rows(output)
        if not changes and not isinstance(output, Arranged):
            return
        readers = self.readers(operator_id) if readers is None else readers
        if readers:
            self._held[operator_id], self._left[operator_id] = output, len(readers)
        if changes:
            self.changed.update(readers)

    def look(self, operator_id: str) -> OperatorOutput | None:
        """The output of an operator, without reading it; None if nothing is kept."""
        return self._held.get(operator_id)

    def get(self, operator_id: str) -> OperatorOutput | None:
        """The output of an operator for one of its readers; None if nothing is kept."""
        found = self._held.get(operator_id)
        if found is not None:
            self._left[operator_id] -= 1
            if not self._left[operator_id]:
                del self._held[operator_id]
        return found


class _Stage:
    """One run of a stage in a bucket; see `run_stage`."""

    def __init__(
        self,
        circuit: Circuit,
        number: int,
        bucket: int,
        sources: Mapping[str, Sequence[Delta]],
        state: StageState,
        ctx: EpochContext,
        publish: Publish | None,
    ) -> None:
        self._circuit, self._number, self._bucket = circuit, number, bucket
        self._sources, self._state, self._ctx, self._publish = sources, state, ctx, publish
        self._scoped = ScopedState(state, ctx.mode.state_id)
        self._replayed = ctx.mode.having("replayed") if isinstance(ctx.mode, Fill) else frozenset()
        self._outputs = _Outputs(circuit, number, ctx)
        self._tallies: dict[str, _Tally] = {}
        self._mapped: dict[str, Delta] = {}
        self._asked: set[str] = set()
        self._watch = Stopwatch()
        self._result = StageResult([])

    def run(self, frames: Iterable[Frame]) -> StageResult:
        """Runs the stage, once."""
        circuit, ctx, result = self._circuit, self._ctx, self._result
        operators = circuit.in_stage(self._number)
        if self._number > 0 or circuit.buckets == 1:
            _claim([o for o in operators if o.kind in STATEFUL and ctx.runs(o.id)], self._state, ctx.mode)
        result.frames.extend(_receive(circuit, self._number, frames, ctx, self._outputs))
        changed = self._outputs.changed
        if self._number == 0:
            _hand_out(circuit, self._bucket, self._sources, ctx, self._outputs, result.frames)
            changed.update(i for i, deltas in self._sources.items() if any(d.num_rows for d in deltas))
        always = self._replayed | circuit.timed
        if isinstance(ctx.mode, Fill) and (ctx.complete or ctx.mode.phase):
            always = always.union(ctx.mode.waiting)
        for op in operators:
            if isinstance(op, Map) and op.id in changed and op.inputs[0] not in self._asked:
                self._map_together(op.inputs[0])
            due = ctx.mode.begins(op.id) or op.id in changed or op.id in always
            if due and op.id not in self._tallies and ctx.runs(op.id):
                self._run(op)
        for operator_id, tally in self._tallies.items():
            result.metrics[operator_id] = tally.metrics()
            if failures := tally.counters.failures:
                result.failures[operator_id] = tuple(failures.values())
            if tally.counters.late:
                result.late[operator_id] = tally.counters.late
        return result

    def _given(self, operator_id: str) -> OperatorOutput:
        """The output of an operator for one of its readers. An arrangement without changes runs when it is first
        read.
        """
        op = self._circuit.by_id[operator_id]
        if op.kind in UNPROMPTED and operator_id not in self._tallies and self._ctx.runs(operator_id):
            self._run(op)
        found = self._outputs.get(operator_id)
        return no_changes(op) if found is None else found

    def _run(self, op: Operator) -> None:
        """Runs an operator, and keeps its output for its readers."""
        read = [self._given(i) for i in op.inputs]
        place = f"in operator {op.id}, stage {self._number}, bucket {self._bucket}, epoch {self._ctx.epoch}"
        tally = self._tallies[op.id] = _Tally(op, place, self._watch)
        given = [tally.coming(changes) for changes in read]
        limit = self._ctx.most_rows.get(op.id, _ANY_NUMBER)
        self._watch.begin(tally)
        try:
            out = self._step(op, given, tally, limit)
            check_output(op, out)
        except TooManyRowsError:
            out = no_changes(op)
        except Exception as e:
            tally.note(e)
            raise
        finally:
            self._watch.end()
        counters = tally.counters
        if counters.made_rows * self._circuit.buckets > limit.reported > 0:
            # If all buckets together exceed the limit, this condition is true in at least one of them.
            self._result.hottest[op.id] = HottestKey(counters.hottest_rows, counters.hottest_key())
        if counters.orphans:
            self._result.orphans[op.id] = counters.orphans
        made = tally.going(out)
        readers = self._outputs.readers(op.id)
        if isinstance(made, Delta) and _nets(op.id, made, self._circuit, self._ctx.mode):
            made = consolidate(made)
        if isinstance(made, Sliced) and len(readers) + isinstance(op, Sink) > 1:
            made = _kept(made, self._ctx.slicing)
        try:
            if op.kind in STATEFUL:
                self._state.store_large(self._ctx.mode.state_id(op.id))
            if isinstance(op, Sink):
                self._show(op, made)
        except Exception as e:
            tally.note(e)
            raise
        self._outputs.put(op.id, made, readers)

    def _map_together(self, operator_id: str) -> None:
        """Computes in one step the maps of an output that only differ in constants. Those without rows need not run."""
        self._asked.add(operator_id)
        outputs, by_id = self._outputs, self._circuit.by_id
        maps = [r for r in outputs.readers(operator_id) if isinstance(by_id[r], Map)]
        found = outputs.look(operator_id)
        if len(maps) < 2 or not isinstance(found, Delta) or found.num_rows * len(maps) > _MOST_PAIRS:
            return
        began_ns = time.perf_counter_ns()
        made = EVALUATOR.project_alike(found.columns, by_id[operator_id].schema, maps, self._projection)
        share_ns = (time.perf_counter_ns() - began_ns) // max(1, len(made))
        nothing = OperatorMetrics(found.num_rows, took_ns=share_ns)
        for map_id, result in made.items():
            if result is None:
                outputs.changed.discard(map_id)
                outputs.get(operator_id)
                self._result.metrics[map_id] = nothing
            else:
                columns, rows = result
                self._mapped[map_id] = Delta(columns, found.diff if rows is None else found.diff[rows])

    def _projection(self, map_id: str) -> MapOf:
        op = self._circuit.by_id[map_id]
        assert isinstance(op, Map)
        return MapOf(op.id, op.exprs, op.schema, op.predicate, op.required)

    def _step(self, op: Operator, given: Sequence[Any], tally: _Tally, limit: MostRows) -> OperatorOutput:
        """The output of an operator."""
        circuit, ctx = self._circuit, self._ctx
        mode = ctx.mode
        if isinstance(op, Scan):
            return _read(op, self._sources)
        if isinstance(op, Exchange):
            if circuit.buckets == 1:
                received: OperatorOutput = given[0]
                return received
            self._result.frames.extend(_sent(op, tally.going(given[0]), circuit.buckets, self._bucket, ctx))
            return no_changes(op)
        if isinstance(op, Sink):
            return _shown(op, given[0], ctx.slicing, circuit)
        if op.id in self._mapped:
            return self._mapped.pop(op.id)
        if isinstance(mode, Fill) and isinstance(op, (Arrange, Versions)) and op.id in self._replayed:
            which = (mode.parts, mode.parts) if mode.phase else (mode.part, mode.until)
            return replay(op, self._scoped, which, mode.parts, circuit.buckets)
        if isinstance(mode, Fill) and op.id in mode.waiting and not isinstance(op, Aggregate):
            given = [self._history(op, mode, number, changes) for number, changes in enumerate(given)]
            if not (mode.outputs(op.id) if mode.levels else ctx.complete):
                return no_changes(op)
        step = StepContext(
            self._bucket,
            mode.begins(op.id),
            EVALUATOR,
            tuple(circuit.by_id[i].schema for i in op.inputs),
            tally.counters,
            tuple(circuit.by_id[i].append_only for i in op.inputs),
            mode.epoch_of(op.id, ctx.epoch),
            ctx.watermarks if mode.completes(op.id) else {NOW: ctx.watermarks[NOW]},
            ctx.before,
            filling=mode.is_filling,
            most_rows=limit.made,
            slicing=ctx.slicing,
        )
        if isinstance(mode, Fill) and op.id in mode.waiting and isinstance(op, Aggregate):
            if mode.outputs(op.id):
                return gathered(op, self._scoped, (mode.part, mode.until), mode.parts, circuit.buckets, step)
            return gather(op, given, self._scoped, step)
        return _stepped(op, given, self._scoped, step)

    def _history(self, op: Operator, mode: Fill, number: int, changes: Delta | Sliced) -> Delta:
        """The history of an input of an operator that the epoch processes: all of it once it is complete, or a part in
        the phase in which the operator outputs it. Until then it is stored.
        """
        trace = self._scoped.trace(op.id, f"history{number}")
        schema = self._circuit.by_id[op.inputs[number]].schema
        delta = _held(changes, schema, self._ctx.slicing)
        keys = history_keys(op, number, len(schema))
        found = list(trace.runs)
        if mode.outputs(op.id):
            which = (mode.part, mode.until) if keys else (0, mode.parts if mode.until == mode.parts else 0)
            found = [part for run in found for part in ranges(run, which, mode.parts, self._circuit.buckets)]
        elif mode.levels or not self._ctx.complete:
            if delta.num_rows:
                trace.append(arrange(delta, keys or tuple(range(len(schema)))))
            return delta
        if not mode.levels or mode.until == mode.parts:
            trace.replace(())
        return consolidate(Delta.concat([*(run.delta() for run in found), delta])) if found else delta

    def _show(self, op: Sink, changes: Delta | Sliced) -> None:
        """Publishes the changes of a relation."""
        if self._publish is not None:
            self._publish(op.relation_id, slices_of(changes))
        elif (held := _held(changes, op.schema, self._ctx.slicing)).num_rows:
            self._result.published[op.relation_id] = held


class _Tally(Worker):
    """Counts one operator's input rows, output rows and time. Slices are counted when they are read.

    place: where the operator runs, for errors.
    """

    def __init__(self, operator: Operator, place: str, watch: Stopwatch) -> None:
        self._operator = operator
        self._place = place
        self._watch = watch
        self.counters = Counters()
        self._rows_in = 0
        self._rows_out = 0

    def note(self, cause: Exception) -> None:
        """Adds operator, stage, bucket and epoch to an error."""
        cause.add_note(self._place)
        mark_failing(cause, self._operator.id)

    def coming(self, changes: Any) -> Any:
        """The input, counted as it is read."""
        if not isinstance(changes, Sliced):
            self._rows_in += changes.num_rows
            return changes

        def counted() -> Iterator[Delta]:
            for piece in changes:
                self._rows_in += piece.num_rows
                yield piece

        return Sliced(counted, retracts_first=changes.retracts_first, net=changes.net)

    def going(self, changes: Any) -> Any:
        """The output, counted as it is read."""
        if not isinstance(changes, Sliced):
            self._rows_out += changes.num_rows
            return changes

        def counted() -> Iterator[Delta]:
            pieces = iter(changes)
            while (piece := self._next(pieces)) is not None:
                self._rows_out += piece.num_rows
                yield piece

        return Sliced(counted, retracts_first=changes.retracts_first, net=changes.net)

    def _next(self, pieces: Iterator[Delta]) -> Delta | None:
        """The next slice, which the operator computes during this call."""
        self._watch.begin(self)
        try:
            piece = next(pieces, None)
            if piece is not None:
                check_output(self._operator, piece)
        except Exception as e:
            self.note(e)
            raise
        else:
            return piece
        finally:
            self._watch.end()

    def metrics(self) -> OperatorMetrics:
        counters = self.counters
        return OperatorMetrics(
            self._rows_in,
            self._rows_out,
            counters.expression_errors,
            counters.waits_for_us,
            counters.made_rows,
            counters.busiest,
            self.took_ns,
        )


def _has_rows(changes: OperatorOutput) -> bool:
    return isinstance(changes, Sliced) or changes.num_rows > 0


def _stepped(op: Operator, given: Sequence[Any], state: State, ctx: StepContext) -> OperatorOutput:
    """One step of an operator. Operators on single rows process each slice when it is read."""
    step = STEPS[op.kind]
    if op.kind in TAKE_SLICES or not any(isinstance(g, Sliced) for g in given):
        return step(op, given, state, ctx)
    if isinstance(op, Union):
        return Sliced(lambda: (piece for g in given for piece in slices_of(g)))
    if op.kind in PIECEWISE:
        net = given[0].net and isinstance(op, Map) and keeps_all(op, len(ctx.schemas[0]))
        return Sliced(lambda: _piecewise(op, given[0], state, ctx), retracts_first=given[0].retracts_first, net=net)
    return step(op, [_held(g, s, ctx.slicing) for g, s in zip(given, ctx.schemas, strict=True)], state, ctx)


def _piecewise(op: Operator, slices: Sliced, state: State, ctx: StepContext) -> Iterator[Delta]:
    for piece in slices:
        made = STEPS[op.kind](op, [piece], state, ctx)
        assert not isinstance(made, Arranged), f"{op.kind} gives an arrangement"
        yield from slices_of(made)


def _kept(changes: Sliced, slicing: Slicing) -> Sliced:
    """The slices, kept so that several readers can read them."""
    found = spooled(changes, slicing)
    return Sliced(lambda: found, retracts_first=changes.retracts_first, net=changes.net)


def _read(op: Operator, sources: Mapping[str, Sequence[Delta]]) -> Delta:
    found = [d for d in sources.get(op.id, ()) if d.num_rows]
    return Delta.concat(found) if found else no_changes(op)


def _nets(operator_id: str, made: Delta, circuit: Circuit, mode: Mode) -> bool:
    """Whether rows of an input's content are compared with the changes that delete them, after an operator that begins
    again.

    Arrangements do the same with their input. For all other operators, rows are compared before the first of them, or
    where they are read if no arrangement is made of them: expressions can cost more than the comparison.
    """
    if not (isinstance(mode, Recompute) and mode.begins(operator_id)):
        return False
    op = circuit.by_id[operator_id]
    if op.kind not in _BY_ROW or not op.schema or not (made.diff < 0).any():
        return False
    if isinstance(op, Scan) and (kinds := _takers(op, circuit)) - {"sink"} and "arrange" not in kinds:
        return True
    return not {circuit.by_id[i].kind for i in circuit.consumers[operator_id]} <= {*_BY_ROW, "arrange", "sink"}


def _takers(op: Operator, circuit: Circuit) -> set[str]:
    """The kinds of the operators that don't process the rows of an operator separately."""
    if op.kind not in _BY_ROW:
        return {op.kind}
    return set().union(*(_takers(circuit.by_id[i], circuit) for i in circuit.consumers[op.id]))


def _hand_out(
    circuit: Circuit,
    task: int,
    sources: Mapping[str, Sequence[Delta]],
    ctx: EpochContext,
    outputs: _Outputs,
    frames: list[Frame],
) -> None:
    """Sends stored content to the readers of the operators that it replaces, in this stage or a later one."""
    for operator_id, content in ctx.mode.stored.items():
        keys = content.keys
        op = circuit.by_id[operator_id]
        delta = _read(op, sources)
        if circuit.stages[operator_id] == 0:
            outputs.put(operator_id, delta)
        else:
            exchange = Exchange((operator_id,), op.schema, op.append_only, tuple(k[0] for k in keys))
            columns = [
                delta.columns.column(k[0]) if len(k) == 1 else pc.coalesce(*[delta.columns.column(i) for i in k])
                for k in keys
            ]
            frames.extend(send(exchange, delta, circuit.buckets, task, operator_id, columns, packed=ctx.packed))


def _claim(operators: Sequence[Operator], state: StageState, mode: Mode) -> None:
    """Checks that each stateful operator has state. New operators get an empty state, which the manifest then lists."""
    known = state.operators
    for op in operators:
        name = mode.state_id(op.id)
        if name not in known and not mode.may_be_new(op.id):
            missing = error(
                "STATE_MISMATCH",
                f"the stored state has nothing of operator {name}",
                detail="It was written for another plan, or part of it is missing.",
                hint="Restore the database's files, or drop the views and create them again.",
            )
            mark_failing(missing, op.id)
            raise missing
        state.declare(name)


def _receive(
    circuit: Circuit, stage: int, frames: Iterable[Frame], ctx: EpochContext, outputs: _Outputs
) -> list[Frame]:
    """Decodes the frames for this stage; returns those for later stages."""
    passed: list[Frame] = []
    mine: dict[str, list[Frame]] = {}
    for frame in sorted(frames, key=lambda f: (f.channel, f.seq)):
        if frame.channel not in circuit.by_id:
            passed.append(frame)
            continue
        readers = [r for r in circuit.consumers[frame.channel] if ctx.runs(r)]
        stages = {circuit.stages[r] for r in readers}
        if stage in stages:
            mine.setdefault(frame.channel, []).append(frame)
        if max(stages, default=0) > stage:
            passed.append(frame)
    for channel in list(mine):
        received = _received(mine.pop(channel), ctx.slicing)
        if isinstance(received, Delta) and _nets(channel, received, circuit, ctx.mode):
            received = consolidate(received)
        outputs.put(channel, received)
    return passed


def _sent(op: Exchange, changes: Delta | Sliced, buckets: int, sender: int, ctx: EpochContext) -> Iterable[Frame]:
    """The frames of the changes. Frames of slices are kept in a file."""
    roles = ctx.roles.get(op.id)
    if isinstance(changes, Delta):
        return send(op, changes, buckets, sender, roles=roles, packed=ctx.packed)
    spool = Spool(ctx.slicing.directory)
    sent = [0] * buckets
    frames: list[tuple[Frame, int]] = []
    for piece in changes:
        body, number = None, 0
        for frame in send(op, piece, buckets, sender, sent=sent, roles=roles, packed=ctx.packed):
            if frame.body is not body:  # all buckets share one body
                body, number = frame.body, spool.add(frame.body)
            frames.append((replace(frame, body=b""), number))
    bodies = spool.buffers()
    return [replace(frame, body=bodies[number]) for frame, number in frames]


def _received(frames: Sequence[Frame], slicing: Slicing) -> Delta | Sliced:
    """The changes in the frames. If they are more than any epoch reads, they are the output of a join and stay
    encoded.
    """
    if len(frames) == 1:
        return receive(frames)
    if sum(count_rows(f.body) for f in frames) <= _MANY_SLICES * slicing.rows:
        return receive(frames)
    return Sliced(lambda: (receive([f]) for f in frames))


def _is_in_order(op: Operator, circuit: Circuit) -> bool:
    """Whether the order of the input's rows does not depend on the order in which rows came: it is that of a join or of
    an upsert.
    """
    found = circuit.by_id[op.inputs[0]]
    while found.kind in PIECEWISE:
        found = circuit.by_id[found.inputs[0]]
    return isinstance(found, (Join, AsofJoin, Upsert))


def _shown(op: Sink, changes: Delta | Sliced, slicing: Slicing, circuit: Circuit) -> Delta | Sliced:
    """The published changes: no row has diffs of both signs. Concatenated slices equal the changes in one piece, or
    their rows do.
    """
    in_order = _is_in_order(op, circuit)
    if isinstance(changes, Delta):
        if op.append_only or changes.net:  # those of joins, upserts and groups, in an order that is not that of arrival
            return _without_zeros(changes)
        return _without_zeros(without_cancelling(changes)) if in_order and op.schema else consolidate(changes)
    if op.append_only or (in_order and changes.net):
        return Sliced(lambda: map(_without_zeros, changes))
    if in_order and op.schema and changes.retracts_first:
        return Sliced(lambda: map(_without_zeros, netted(changes, slicing)))
    return Sliced(lambda: consolidated(changes, None, slicing))


def _held(changes: Delta | Sliced, schema: Schema, slicing: Slicing) -> Delta:
    """All changes in one piece; the columns of slices are in a file."""
    if isinstance(changes, Delta):
        return changes
    return replace(whole(changes, arrow_schema(schema, positional=True), slicing), net=changes.net)


def _without_zeros(delta: Delta) -> Delta:
    return delta if delta.diff.all() else delta.take(np.flatnonzero(delta.diff))
