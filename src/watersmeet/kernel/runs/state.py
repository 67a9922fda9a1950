"""The state of a stage in one bucket: traces by operator and name, loaded from a manifest when requested."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.circuit.circuit import STATE_FORMAT_VERSION
from watersmeet.errors import error
from watersmeet.kernel.runs.cold import RemoteRun, StreamedRun, opened, together
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.shares import RunRef, hot_keys, load, shared
from watersmeet.kernel.runs.trace import MergeBudget, Trace
from watersmeet.system.blobs import BlobParts, BlobRef, DirectBlob, Pieces, joined


class State(Protocol):
    """The state, as the step of an operator uses it."""

    def trace(self, operator_id: str, name: str) -> Trace:
        """The trace `name` of the operator; empty at first. Changes to it are kept."""
        ...

    def names(self, operator_id: str) -> list[str]:
        """The names of the operator's traces, in order."""
        ...


@dataclass(frozen=True)
class StateManifest:
    """The stored state: for each trace of each operator its runs, oldest first.

    An operator may have no traces. The JSON form begins with the number of the state format, which is checked first.
    """

    operators: Mapping[str, Mapping[str, tuple[RunRef, ...]]]

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes the same manifest."""
        operators = {o: {n: [r.to_json() for r in refs] for n, refs in t.items()} for o, t in self.operators.items()}
        return {"format": STATE_FORMAT_VERSION, "operators": operators}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StateManifest:
        """The inverse of `to_json`. Raises STATE_MISMATCH for another state format."""
        if value.get("format") != STATE_FORMAT_VERSION:
            raise error("STATE_MISMATCH", f"the state has format {value.get('format')}, this is {STATE_FORMAT_VERSION}")
        return StateManifest(
            {
                o: {n: tuple(map(RunRef.from_json, refs)) for n, refs in traces.items()}
                for o, traces in value["operators"].items()
            }
        )

    def within(self, segment: str) -> StateManifest:
        """The manifest with references that are valid outside of its segment."""
        return StateManifest(
            {
                o: {n: tuple(r.within(segment) for r in refs) for n, refs in traces.items()}
                for o, traces in self.operators.items()
            }
        )

    def refs_of(self, operator_id: str) -> list[RunRef]:
        """The runs of all traces of an operator."""
        return [r for refs in self.operators.get(operator_id, {}).values() for r in refs]

    def merge_debt_bytes(self, operator_id: str) -> int:
        """The bytes of an operator's runs that merges still have to take."""
        return sum(r.size_bytes for r in self.refs_of(operator_id) if r.merging is not None)

    @property
    def refs(self) -> set[RunRef]:
        """All runs."""
        return {r for o in self.operators for r in self.refs_of(o)}


class BlobStore(Protocol):
    """The source of stored runs."""

    def read(self, ref: BlobRef) -> pa.Buffer:
        """The bytes of `ref`, preferably without a copy. Raises STATE_DAMAGED if they are missing."""
        ...


class Early(Protocol):
    """Stores blobs in separate files during an epoch. least_bytes: smaller blobs are not worth a file."""

    least_bytes: int

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """Stores `blob`, now or in the background, and returns its reference."""
        ...

    def read(self, ref: BlobRef) -> pa.Buffer:
        """The bytes of a stored blob, mapped."""
        ...

    def drop(self, refs: Iterable[BlobRef]) -> None:
        """Deletes stored blobs to which the epoch does not refer."""
        ...


#: A function that opens a blob for reading that bypasses the page cache; None if that is not possible.
DirectOf = Callable[[BlobRef], DirectBlob | None]

#: A function that returns for each blob its parts, or None if all of it is local.
PartsOf = Callable[[Sequence[BlobRef]], Sequence[BlobParts | None]]


class RunCache:
    """The most recently used runs, by reference; one cache per process and blob store.

    Runs and blobs never change, so entries are always valid. Usually an entry keeps the mapping of a file.
    """

    def __init__(self, most_runs: int = 4096) -> None:
        self._runs: OrderedDict[RunRef, Run] = OrderedDict()
        self._most_runs = most_runs

    def get(self, ref: RunRef) -> Run | None:
        """The run of `ref`, if it is cached."""
        run = self._runs.get(ref)
        if run is not None:
            self._runs.move_to_end(ref)
        return run

    def put(self, ref: RunRef, run: Run) -> None:
        """Keeps `run`."""
        self._runs[ref] = run
        if len(self._runs) > self._most_runs:
            self._runs.popitem(last=False)


class StageState:
    """The traces of one stage in one bucket.

    manifest: the result of the last `persist`, or None for a new state. Runs are read from `blobs` when their trace is
    first used; only `persist` writes. cache: states of one process and blob store may share it. budget: that of the
    merges of all traces. parts: for blobs that may be remote; if None, all blobs are local and runs are written without
    filters. direct: opens a blob for reading that bypasses the page cache; if None, all runs stay in memory if they
    fit. stay_bytes: the bytes of runs that stay in memory, the smallest runs first. early: stores large runs during the
    epoch (with `direct`, as soon as merges have made them, so that they take no memory); if None, `persist` stores
    them.
    """

    def __init__(
        self,
        manifest: StateManifest | None = None,
        blobs: BlobStore | None = None,
        cache: RunCache | None = None,
        budget: MergeBudget | None = None,
        *,
        parts: PartsOf | None = None,
        early: Early | None = None,
        direct: DirectOf | None = None,
        stay_bytes: int = 0,
    ) -> None:
        manifest = StateManifest({}) if manifest is None else manifest
        self._stored: dict[str, dict[str, tuple[RunRef, ...]]] = {o: dict(t) for o, t in manifest.operators.items()}
        self._before = {r.blob for r in manifest.refs}
        self._loaded: dict[str, dict[str, Trace]] = {}
        self._blobs = blobs
        self._cache = RunCache() if cache is None else cache
        self._budget = MergeBudget() if budget is None else budget
        self._parts = parts
        self._early = early
        self._stored_early: set[BlobRef] = set()
        self._direct = direct
        self._streamed = set() if direct is None else _streamed(manifest.refs, stay_bytes)

    @property
    def operators(self) -> KeysView[str]:
        """The ids of the operators with state, possibly without rows."""
        return self._stored.keys()

    def declare(self, operator_id: str) -> None:
        """Adds the operator, so that the manifest lists it even without rows."""
        self._stored.setdefault(operator_id, {})

    def drop(self, operator_id: str) -> None:
        """Forgets the operator and its traces."""
        self._stored.pop(operator_id, None)
        self._loaded.pop(operator_id, None)

    def clone(self, operator_id: str, name: str) -> None:
        """Adds a state `name` that refers to the runs of a stored operator's traces."""
        self._stored[name] = dict(self._stored[operator_id])

    def trace(self, operator_id: str, name: str) -> Trace:
        """The trace `name` of the operator, empty the first time. Each call returns the same object."""
        loaded = self._loaded.setdefault(operator_id, {})
        if name not in loaded:
            self.declare(operator_id)
            refs = self._stored[operator_id].get(name, ())
            keep = None if self._early is None or self._direct is None else self._kept
            loaded[name] = Trace([run for run in self._load(refs) if run.num_rows], self._budget, keep)
        return loaded[name]

    def names(self, operator_id: str) -> list[str]:
        """The names of the operator's traces, in order."""
        return sorted({*self._stored.get(operator_id, {}), *self._loaded.get(operator_id, {})})

    def size(self, operator_id: str) -> tuple[int, int]:
        """(rows, bytes) of the operator's traces; unloaded traces count by their stored size."""
        loaded = self._loaded.get(operator_id, {})
        rows = sum(trace.num_rows for trace in loaded.values())
        size_bytes = sum(trace.size_bytes for trace in loaded.values())
        for name, refs in self._stored.get(operator_id, {}).items():
            if name not in loaded:
                rows += sum(r.rows for r in refs)
                size_bytes += sum(r.size_bytes for r in refs)
        return rows, size_bytes

    def store_large(self, operator_id: str) -> None:
        """Begins to store the operator's large new runs, which rarely change after its step, so that `persist` takes
        less time.
        """
        if self._early is None:
            return
        new = [r for t in self._loaded.get(operator_id, {}).values() for r in t.runs if r.ref is None]
        for run in new:
            if run.size_bytes >= self._early.least_bytes:
                self._stored_early.add(self._store(run, self._early.add).blob)

    def persist(self, add: Callable[[Pieces, int], BlobRef]) -> StateManifest:
        """Passes each new run's (bytes, rows) to `add`, in a fixed order, and returns the new manifest.

        Runs that were merged away before they were ever stored are not written.
        """
        operators: dict[str, dict[str, tuple[RunRef, ...]]] = {}
        for operator_id in sorted(self._stored):
            traces = dict(self._stored[operator_id])
            for name, trace in self._loaded.get(operator_id, {}).items():
                traces[name] = tuple(self._store(run, add) for run in trace.runs)
            self._stored[operator_id] = traces
            operators[operator_id] = {n: traces[n] for n in sorted(traces) if traces[n]}
        manifest = StateManifest(operators)
        if self._early is not None:
            self._early.drop(self._stored_early - {r.blob for r in manifest.refs})
        return manifest

    def retired(self) -> tuple[BlobRef, ...]:
        """The blobs in the given manifest that the state no longer needs; call after `persist`."""
        now = {r.blob for traces in self._stored.values() for refs in traces.values() for r in refs}
        return tuple(sorted(self._before - now))

    def _load(self, refs: Sequence[RunRef]) -> list[Run]:
        if refs and self._blobs is None:
            raise error("INTERNAL_ERROR", "a state with stored runs needs a blob store")
        found = {ref: run for ref in refs if (run := self._cache.get(ref)) is not None}
        missing = [ref for ref in refs if ref not in found]
        parts = [None] * len(missing) if self._parts is None else self._parts([r.blob for r in missing])
        cold = {ref: some for ref, some in zip(missing, parts, strict=True) if some is not None}
        runs = dict(zip(cold, together([opened(some, ref) for ref, some in cold.items()]), strict=True))
        for ref in missing:
            assert self._blobs is not None
            if ref in runs:
                found[ref] = shared(ref, runs[ref])
            else:
                buffer = self._blobs.read(ref.blob)
                found[ref] = self._streamed_run(ref, buffer) if ref in self._streamed else load(ref, buffer)
            self._cache.put(ref, found[ref])
        return [found[ref] for ref in refs]

    def _streamed_run(self, ref: RunRef, buffer: pa.Buffer) -> Run:
        """The mapped run; if it is large enough to have an index, as a run that does not stay in memory."""
        whole = Run.from_ipc(buffer, ref)
        run = shared(ref, whole)
        assert self._direct is not None
        # Rows selected for a share are already in memory.
        blob = self._direct(ref.blob) if run.ref is not None and run.num_rows else None
        if blob is None:
            return run
        (cold,) = together([opened(blob, ref)])
        return StreamedRun(run, whole, cold, blob) if isinstance(cold, RemoteRun) else run

    def _kept(self, run: Run) -> Run:
        """The run, in its stored form if it is large."""
        assert self._early is not None
        if run.size_bytes < self._early.least_bytes:
            return run
        ref = self._store(run, self._early.add)
        self._stored_early.add(ref.blob)
        return load(ref, self._early.read(ref.blob))

    def _store(self, run: Run, add: Callable[[Pieces, int], BlobRef]) -> RunRef:
        if run.ref is None:
            blob = run.stored(filters=self._parts is not None)
            run.ref = RunRef(add(blob, run.num_rows), hot=hot_keys(run))
        ref: RunRef = run.ref
        return ref if ref.merging == run.merging else ref._replace(merging=run.merging)


def _streamed(refs: Iterable[RunRef], stay_bytes: int) -> set[RunRef]:
    """The largest runs, so many that the others have at most `stay_bytes` in total."""
    ordered = sorted(refs, key=lambda r: (r.size_bytes, r.blob))
    ends = accumulate(r.size_bytes for r in ordered)
    return {ref for ref, end in zip(ordered, ends, strict=True) if end > stay_bytes}


class ScopedState:
    """A state that keeps the traces of operators under the ids that `state_id` returns."""

    def __init__(self, state: State, state_id: Callable[[str], str]) -> None:
        self._state = state
        self._state_id = state_id

    def trace(self, operator_id: str, name: str) -> Trace:
        """The trace `name` of the operator."""
        return self._state.trace(self._state_id(operator_id), name)

    def names(self, operator_id: str) -> list[str]:
        """The names of the operator's traces."""
        return self._state.names(self._state_id(operator_id))


class BlobDict:
    """A blob store in memory, for tests and benchmarks: `add` stores, `read` returns."""

    def __init__(self) -> None:
        self._blobs: dict[str, pa.Buffer] = {}
        self._added = 0

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """Stores `blob` and returns its reference."""
        buffer = joined(blob)
        ref = BlobRef(str(self._added), 0, buffer.size, rows)
        self._blobs[ref.file] = buffer
        self._added += 1
        return ref

    def remove(self, ref: BlobRef) -> None:
        """Forgets the buffer of `ref`."""
        del self._blobs[ref.file]

    def read(self, ref: BlobRef) -> pa.Buffer:
        """The buffer of `ref`."""
        return self._blobs[ref.file]
