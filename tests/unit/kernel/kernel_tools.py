"""What the kernel's tests share: deltas from Python rows, weak hashes, states that are stored and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from watersmeet.circuit.operators import Arrange, Join
from watersmeet.kernel.arrays import hashing
from watersmeet.kernel.arrays.columns import Mask
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators import arrange as arrange_module
from watersmeet.kernel.operators import join
from watersmeet.kernel.runs import run as blocks
from watersmeet.kernel.runs import run as run_module
from watersmeet.kernel.runs.delta import Delta, Sliced
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import BlobDict, StageState, State
from watersmeet.kernel.runs.trace import Trace
from watersmeet.system.blobs import BlobRef, joined
from watersmeet.values.types import Field, Schema, SqlType


def schema_of(*types: SqlType) -> Schema:
    """Columns a, b, … of the types."""
    return tuple(Field(chr(97 + i), t) for i, t in enumerate(types))


def delta_of(schema: Schema, rows: Sequence[Sequence[object]], diffs: Sequence[int] | None = None) -> Delta:
    """A delta of Python rows, all inserted unless `diffs` says otherwise."""
    arrays = [pa.array([r[i] for r in rows], f.type.arrow) for i, f in enumerate(schema)]
    table = pa.Table.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
    return Delta(table, np.ones(len(rows), np.int64) if diffs is None else np.array(diffs, np.int64))


def rows_of(delta: Delta) -> list[tuple[object, ...]]:
    """The rows of a delta as Python values."""
    columns = [c.to_pylist() for c in delta.columns.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * delta.num_rows


def entries(runs: Iterable[Run], hashes: Hashes) -> list[str]:
    """The entries of runs that have one of the hashes, as text."""
    delta = Trace(runs).entries(hashes)
    return [] if delta is None else [str(r) for r in zip(rows_of(delta), delta.diff.tolist(), strict=True)]


def drawn_hashes(data: st.DataObject, run: Run) -> Hashes:
    """Some hashes, sorted and distinct: those of a few rows of a run, and others."""
    chosen = data.draw(st.lists(st.sampled_from(np.unique(run.hash).tolist()), max_size=3))
    others = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=3))
    return np.unique(np.array([*chosen, *others], np.uint64))


def drawn_ranges(data: st.DataObject, run: Run, hashes: Hashes) -> tuple[int, Hashes, Mask]:
    """A spread, the bases of the ranges with the hashes, and which rows of a run are in one."""
    spread = data.draw(st.sampled_from([1, 0xFFFF, 0xFFFFFFFF]))
    bases = np.unique(hashes & ~np.uint64(spread))
    every = np.zeros(run.num_rows, np.bool_)
    for base in bases:
        every |= (run.hash >= base) & (run.hash <= base | np.uint64(spread))
    return spread, bases, every


def step_join(op: Join, inputs: Sequence[Delta], state: State, context: StepContext) -> Delta:
    """One step of a join and of the arrangements of its two inputs, which are called `left` and `right`."""
    arranged = []
    for name, delta, keys, schema in zip(
        ("left", "right"), inputs, (op.left_keys, op.right_keys), context.schemas, strict=True
    ):
        made = Arrange((name,), schema, False, keys, op.null_safe, 0)
        arranged.append(arrange_module.step(made, [delta], state, context))
    return join.step(op, arranged, state, context)


def grown(change: tuple[list, list]) -> tuple[list, list]:
    """The insertions of a random change."""
    kept = [(row, diff) for row, diff in zip(*change, strict=True) if diff > 0]
    return [row for row, _ in kept], [diff for _, diff in kept]


def check_order(changes: Delta | Sliced) -> None:
    """That slices keep their promise: retractions precede insertions."""
    if isinstance(changes, Sliced) and changes.retracts_first:
        signs = [(bool((piece.diff < 0).any()), bool((piece.diff > 0).any())) for piece in changes]
        first = next((i for i, (_, above) in enumerate(signs) if above), len(signs))
        assert not any(below for below, _ in signs[first + 1 :])


class FarBlob:
    """A blob that is elsewhere: what was not fetched is garbage. `blobs.BlobParts`."""

    def __init__(self, blob: pa.Buffer) -> None:
        self._blob = np.frombuffer(blob, np.uint8)
        self._here = np.full(len(self._blob), 0xA7, np.uint8)
        self._fetched = np.zeros(len(self._blob), np.bool_)
        self.buffer = pa.py_buffer(self._here)

    @property
    def fetched_bytes(self) -> int:
        """How many bytes are here."""
        return int(self._fetched.sum())

    def missing_bytes(self, ranges: np.ndarray) -> int:
        """As `BlobParts`."""
        return sum(int((~self._fetched[begin:end]).sum()) for begin, end in ranges.tolist())

    def fetch(self, wanted: Sequence[tuple[FarBlob, np.ndarray]]) -> None:
        """As `BlobParts`."""
        for parts, ranges in wanted:
            for begin, end in ranges.tolist():
                assert 0 <= begin <= end <= len(parts._blob)
                parts._here[begin:end] = parts._blob[begin:end]
                parts._fetched[begin:end] = True


def index_all_runs(patch: pytest.MonkeyPatch, block_rows: int = 4) -> None:
    """Runs of any size have an index, with small blocks."""
    patch.setattr(run_module, "INDEXED_BYTES", 1)
    patch.setattr(blocks, "BLOCK_ROWS", block_rows)


def blob_of(run: Run, *, filters: bool = False) -> pa.Buffer:
    """What is stored of a run."""
    return joined(run.stored(filters=filters))


class Stored:
    """A state that goes through its stored form after every epoch.

    far: it is elsewhere then.
    """

    def __init__(self, *, far: bool = False) -> None:
        self.blobs = BlobDict()
        self.manifest = None
        self.far: list[FarBlob] | None = [] if far else None

    def load(self) -> StageState:
        """The state as stored."""
        return StageState(self.manifest, self.blobs, parts=self._parts if self.far is not None else None)

    def _parts(self, refs: Sequence[BlobRef]) -> list[FarBlob]:
        found = [FarBlob(self.blobs.read(ref)) for ref in refs]
        self.far += found
        return found

    def save(self, state: StageState) -> None:
        """Stores the state."""
        self.manifest = state.persist(self.blobs.add)

    def bytes(self) -> list[bytes]:
        """All that was ever stored, in order."""
        return [self.blobs._blobs[str(i)].to_pybytes() for i in range(len(self.blobs._blobs))]


def weaken_hashes(patch: pytest.MonkeyPatch, mask: int = 3) -> None:
    """Makes nearly all hashes collide: nothing may depend on their being distinct."""
    strong = hashing._hash_column

    def weak(column: object, *, as_key: bool) -> np.ndarray:
        return strong(column, as_key=as_key) & np.uint64(mask)

    patch.setattr(hashing, "_hash_column", weak)
    patch.setattr(run_module, "is_bijective", lambda kind: False)
    patch.setattr(arrange_module, "is_bijective", lambda kind: False)
