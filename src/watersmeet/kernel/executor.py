"""Runs one stage of a circuit for one bucket (or, in stage 0, for one task) in one epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Arrange, Exchange, Operator, Scan, Sink, Versions
from watersmeet.errors import error
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Counters, OperatorMetrics
from watersmeet.kernel.operators import STATEFUL, STEPS, UNPROMPTED, Output
from watersmeet.kernel.operators.arrange import told
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.frames import Frame, receive, send
from watersmeet.kernel.runs.state import ScopedState, StageState
from watersmeet.types import arrow_schema

#: The state of an operator's scratch copy has this before the operator's id.
SCRATCH: Final = "scratch!"

_EVALUATOR: Final = Evaluator()


@dataclass(frozen=True)
class EpochContext:
    """What a stage knows of its epoch.

    initial: the first epoch in the life of the active operators. active: which operators run; None: all.
    scratch: those whose state is a copy of its own during a backfill. fresh: those that may have no state yet.
    given: operators that do not run, because their output comes with the sources, with the keys by whose hash it
    goes to the buckets: each the first of some columns that is not NULL. told: arrangements that give their readers what they keep, in `part[1]` epochs of which this is
    number `part[0]`. watermarks, before: see `StepContext`. rebuilding: all operators read history, as those of a
    backfill do.
    """

    epoch: int
    initial: bool = False
    active: frozenset[str] | None = None
    scratch: frozenset[str] = frozenset()
    fresh: frozenset[str] = frozenset()
    given: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    part: tuple[int, int] = (0, 0)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    rebuilding: bool = False

    @property
    def filling(self) -> bool:
        """True if what operators read is history."""
        return self.rebuilding or self.active is not None


@dataclass(frozen=True)
class StageResult:
    """frames: for later stages. published: changes by relation, consolidated unless append-only. metrics: by operator."""

    frames: list[Frame]
    published: dict[str, Delta]
    metrics: dict[str, OperatorMetrics]


@dataclass(eq=False)
class _Inputs:
    """Outputs of operators that are still to be read in this stage; each goes when its last reader has it."""

    readers: dict[str, int]
    held: dict[str, Output] = field(default_factory=dict)

    def put(self, operator_id: str, output: Output) -> None:
        if self.readers.get(operator_id):
            self.held[operator_id] = output

    def get(self, operator: Operator) -> Any:
        """The output of `operator` for one of its readers."""
        self.readers[operator.id] -= 1
        last = not self.readers[operator.id]
        found = self.held.pop(operator.id, None) if last else self.held.get(operator.id)
        return Delta.empty(arrow_schema(operator.schema, positional=True)) if found is None else found


def run_stage(circuit: Circuit, stage: int, bucket: int, sources: Mapping[str, Sequence[Delta]],
              frames: Iterable[Frame], state: StageState, ctx: EpochContext) -> StageResult:
    """Runs the active operators of `stage`. `bucket` is the number of the task in a stage 0 that has no state.

    sources: by id of scan or given operator, changes with columns c0, c1, … frames: those that came for this bucket, in any order.
    The state is changed, not persisted. Raises Error STATE_MISMATCH if the state of an operator
    that must have one is missing.
    """
    operators = [o for o in circuit.in_stage(stage) if ctx.active is None or o.id in ctx.active]
    if stage > 0 or circuit.buckets == 1:
        _claim(operators, state, ctx)
    inputs = _Inputs(_count_readers(operators))
    result = StageResult(_receive(circuit, stage, frames, ctx, inputs), {}, {})
    if stage == 0:
        _hand_out(circuit, bucket, sources, ctx, inputs, result.frames)
    scoped = ScopedState(state, {i: SCRATCH + i for i in ctx.scratch})
    for op in operators:
        given = [inputs.get(circuit.by_id[i]) for i in op.inputs]
        counters = Counters()
        out: Output
        try:
            if isinstance(op, Scan):
                out = _read(op, sources)
            elif isinstance(op, Exchange):
                out = given[0]
                result.frames.extend(send(op, given[0], circuit.buckets, bucket))
            elif isinstance(op, Sink):
                out = _publish(op, given[0], result.published)
            elif isinstance(op, (Arrange, Versions)) and op.id in ctx.told:
                out = told(op, state, *ctx.part)
            elif ctx.initial or op.is_timed or op.kind in UNPROMPTED or any(d.num_rows for d in given):
                schemas = tuple(circuit.by_id[i].schema for i in op.inputs)
                flags = tuple(circuit.by_id[i].append_only for i in op.inputs)
                step = StepContext(bucket, ctx.initial, _EVALUATOR, schemas, counters, flags, ctx.epoch,
                                   ctx.watermarks, ctx.before, filling=ctx.filling)
                out = STEPS[op.kind](op, given, scoped, step)
            else:
                out = Delta.empty(arrow_schema(op.schema, positional=True))
        except Exception as e:
            e.add_note(f"in operator {op.id}, stage {stage}, bucket {bucket}, epoch {ctx.epoch}")
            raise
        rows, size_bytes = state.size(_state_id(op, ctx)) if op.kind in STATEFUL else (0, 0)
        result.metrics[op.id] = OperatorMetrics(sum(d.num_rows for d in given), out.num_rows, rows, size_bytes,
                                                counters.expression_errors, counters.waits_for_us)
        inputs.put(op.id, out)
    return result


def _read(op: Operator, sources: Mapping[str, Sequence[Delta]]) -> Delta:
    found = [d for d in sources.get(op.id, ()) if d.num_rows]
    return Delta.concat(found) if found else Delta.empty(arrow_schema(op.schema, positional=True))


def _hand_out(circuit: Circuit, task: int, sources: Mapping[str, Sequence[Delta]], ctx: EpochContext, inputs: _Inputs,
              frames: list[Frame]) -> None:
    """The output of given operators goes to their readers, wherever these run."""
    for operator_id, keys in ctx.given.items():
        op = circuit.by_id[operator_id]
        delta = _read(op, sources)
        if circuit.stages[operator_id] == 0:
            inputs.put(operator_id, delta)
        else:
            exchange = Exchange((operator_id,), op.schema, op.append_only, tuple(k[0] for k in keys))
            columns = [delta.columns.column(k[0]) if len(k) == 1 else pc.coalesce(*[delta.columns.column(i) for i in k]) for k in keys]
            frames.extend(send(exchange, delta, circuit.buckets, task, operator_id, columns))


def _state_id(op: Operator, ctx: EpochContext) -> str:
    return SCRATCH + op.id if op.id in ctx.scratch else op.id


def _claim(operators: Sequence[Operator], state: StageState, ctx: EpochContext) -> None:
    """Makes sure that each operator's state is there; new operators get an empty one, which the manifest then lists."""
    for op in operators:
        if op.kind not in STATEFUL:
            continue
        name = _state_id(op, ctx)
        may_be_new = op.id in ctx.fresh or (op.id in ctx.scratch and ctx.initial)
        if name not in state.operators and not may_be_new:
            raise error("STATE_MISMATCH", f"the stored state has nothing of operator {name}",
                        detail="It was written for another plan, or part of it is missing.",
                        hint="Restore the database's files, or drop the views and create them again.")
        state.declare(name)


def _count_readers(operators: Sequence[Operator]) -> dict[str, int]:
    readers: dict[str, int] = {}
    for op in operators:
        for i in op.inputs:
            readers[i] = readers.get(i, 0) + 1
    return readers


def _receive(circuit: Circuit, stage: int, frames: Iterable[Frame], ctx: EpochContext, inputs: _Inputs) -> list[Frame]:
    """Decodes what operators of this stage read; gives back what later stages need."""
    passed: list[Frame] = []
    mine: dict[str, list[Frame]] = {}
    for frame in sorted(frames, key=lambda f: (f.channel, f.seq)):
        if frame.channel not in circuit.by_id:
            passed.append(frame)
            continue
        readers = [r for r in circuit.consumers[frame.channel] if ctx.active is None or r in ctx.active]
        stages = {circuit.stages[r] for r in readers}
        if stage in stages:
            mine.setdefault(frame.channel, []).append(frame)
        if max(stages, default=0) > stage:
            passed.append(frame)
    for channel in list(mine):
        inputs.put(channel, receive(mine.pop(channel)))
    return passed


def _publish(op: Sink, delta: Delta, published: dict[str, Delta]) -> Delta:
    kept = delta if op.append_only else consolidate(delta)
    if op.append_only and not kept.diff.all():
        kept = kept.take(np.flatnonzero(kept.diff))
    if kept.num_rows:
        earlier = published.get(op.relation_id)
        assert earlier is None, f"two sinks publish {op.relation_id}"
        published[op.relation_id] = kept
    return kept
