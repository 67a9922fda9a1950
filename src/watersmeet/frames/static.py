"""A stream joined with rows that don't change: looked up in every task, without state.

The static rows are read once, when `join` is called, and arranged once in each worker. They can't come later, so
nothing is ever taken back, and nothing of the stream is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Start
from watersmeet.circuit.operators import Arrange
from watersmeet.frames.buckets import repeated
from watersmeet.frames.circuits import JOINED, compile_join
from watersmeet.frames.pieces import Cutter
from watersmeet.frames.schemas import arrow_columns
from watersmeet.frames.shapes import SIDES, JoinShape
from watersmeet.frames.tasks import Decoder, gathered
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.executor import EpochContext, run_stage
from watersmeet.kernel.operators.arrange import ROWS, split
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import decode, encode
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import StageState

_MOST: Final = 8

#: The arranged rows of the static sides that this worker has seen last, by the token of their join.
_arranged: OrderedDict[str, Run] = OrderedDict()


def static_rows(shape: JoinShape, rows: pa.Table) -> bytes:
    """The rows of the static side, to be sent to every worker. rows: the side's columns as Spark gives them."""
    cutter = Cutter(shape, _index(shape))
    columns = cutter.complete(arrow_columns(rows, cutter.given))
    return memoryview(encode(Delta(col.positional(columns), np.ones(rows.num_rows, np.int64)))).tobytes()


@dataclass(frozen=True)
class LookUp:
    """Rows of the stream into rows of the result. rows: a broadcast of `static_rows`. token: names it."""

    shape: JoinShape
    rows: Any
    token: str
    decoder: Decoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `DataFrame.mapInArrow`."""
        cutter = Cutter(self.shape, 1 - _index(self.shape))
        circuit = compile_join(replace(self.shape, static=None, emit="changes"))
        for table in gathered(batches):
            columns = cutter.complete(arrow_columns(table, cutter.given))
            yield self.decoder.rows(
                self._join(circuit, Delta(col.positional(columns), np.ones(table.num_rows, np.int64)))
            )

    def _join(self, circuit: Circuit, delta: Delta) -> Delta:
        static = _index(self.shape)
        scans = {s.relation_id: s for s in circuit.scans}
        kept = next(o for o in circuit.operators if isinstance(o, Arrange) and o.inputs == (scans[SIDES[static]].id,))
        state = StageState()
        state.trace(kept.id, ROWS).replace([self._static(kept)])
        context = EpochContext(0, Start())
        found = run_stage(circuit, 0, 0, {scans[SIDES[1 - static]].id: [delta]}, (), state, context).published.get(
            JOINED
        )
        return Delta.none(circuit.sinks[0].schema) if found is None else repeated(found)

    def _static(self, kept: Arrange) -> Run:
        """The static rows as the arrangement has them; those with NULL in the key meet nothing."""
        run = _arranged.get(self.token)
        if run is None:
            run = split(decode(self.rows.value), kept.keys, kept.null_safe)[0]
            _arranged[self.token] = run
            if len(_arranged) > _MOST:
                _arranged.popitem(last=False)
        return run


def _index(shape: JoinShape) -> int:
    assert shape.static is not None
    return SIDES.index(shape.static)
