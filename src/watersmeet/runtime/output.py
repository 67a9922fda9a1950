"""The output of one task of an epoch: one segment, for any number of stages and buckets, and its receipts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from watersmeet.circuit.epochs import COPY
from watersmeet.kernel.runs.delta import Delta, are_ones
from watersmeet.kernel.runs.frames import Frame
from watersmeet.kernel.runs.state import StageState, StateManifest
from watersmeet.objectstores.databasefiles import Requests
from watersmeet.runtime.taskcontract import RECEIPT, Receipt
from watersmeet.store.changes import ChangeWriter, RelationChange
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import SegmentWriter
from watersmeet.system.blobs import BlobRef, Pieces


@cache
def own_executor() -> str:
    """The id of the executor of this process; "" outside of executors, or if it is unknown.

    Python workers can only read the id from the command line of their executor.
    """
    process = os.getppid()
    while process > 0:
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1]
        except OSError:
            return ""
        if "--executor-id" in words[:-1]:
            return words[words.index("--executor-id") + 1]
        process = int(parent)
    return ""


#: The key of the state in a section of a segment.
_STATE: Final = "state"


def stored_state(segments: SegmentFiles, segment: str, place: str) -> StateManifest:
    """The state that a segment lists for `place`, "stage/bucket"."""
    return StateManifest.from_json(segments.read_section(segment, place)[_STATE]).within(segment)


def section_of(state: StateManifest) -> dict[str, Any]:
    """The section of a segment that lists a state."""
    return {_STATE: state.to_json()}


class TaskOutput:
    """Collects the output of a task and the receipt of each stage and bucket. `finish` writes the segment."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer
        self._sections: dict[str, dict[str, Any]] = {}
        self._receipts: list[tuple[int, Receipt]] = []

    def add_change(self, pieces: Iterable[Delta], names: Sequence[str]) -> RelationChange | None:
        """Write the change of a relation with these column names.

        The result is for `add_receipt`. Without rows, writes nothing and returns None.
        """
        blobs = ChangeWriter(self._writer, unread=True)
        for piece in pieces:
            blobs.add(piece.columns.rename_columns(names), None if are_ones(piece.diff) else piece.diff)
        change = blobs.finish()
        return change if change.blobs else None

    def add_state(self, place: str, state: StageState, before: StateManifest | None) -> dict[str, int] | None:
        """Write the state of `place` ("stage/bucket").

        Returns for each operator the growth of its state in bytes. If the state equals `before`, writes nothing and
        returns None.
        """
        new = state.persist(self._writer.add)
        if new == before:
            return None
        self._sections[place] = section_of(new)
        return _grown(StateManifest({}) if before is None else before, new)

    def add_receipt(self, receipt: Receipt, bucket: int) -> None:
        """Add the receipt of a stage in a bucket. bucket: the destination of its frame."""
        self._receipts.append((bucket, receipt))

    def early(self, segments: SegmentFiles) -> EarlyBlobs:
        """Storage for large runs while the task continues. segments: those of the same directory."""
        return EarlyBlobs(self._writer, segments)

    def finish(self, requests: Requests) -> list[Frame]:
        """Write the segment, unless it would be empty. Returns the receipts as frames. requests: added to the first
        receipt.
        """
        segment = self._writer.finish(self._sections)
        frames = []
        for number, (bucket, receipt) in enumerate(self._receipts):
            made = replace(
                receipt,
                segment=segment if f"{receipt.stage}/{receipt.bucket}" in self._sections else None,
                relations={i: change.within(segment) for i, change in receipt.relations.items()},
                executor=own_executor(),
            )
            if not number:
                made = replace(
                    made,
                    requests=requests.count,
                    cache_hits=requests.hits,
                    cache_misses=requests.misses,
                    fetched_bytes=requests.fetched_bytes,
                )
            frames.append(Frame(bucket, RECEIPT, receipt.bucket, made.to_bytes()))
        return frames


class EarlyBlobs:
    """See `kernel.runs.state.Early`."""

    def __init__(self, writer: SegmentWriter, segments: SegmentFiles) -> None:
        self.least_bytes = writer.own_file_bytes
        self._writer = writer
        self._segments = segments

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """Store `blob`, now or soon, and return its reference. The state keeps the run that contains the blob."""
        return self._writer.add(blob, rows, held=True)

    def read(self, ref: BlobRef) -> pa.Buffer:
        """The bytes of a stored blob, mapped; waits until it is written."""
        self._writer.wait()
        return self._segments.read_blob(ref)

    def drop(self, refs: Iterable[BlobRef]) -> None:
        """Delete stored blobs to which the epoch will not refer."""
        for ref in refs:
            self._writer.drop(ref)


def held_bytes(manifest: StateManifest) -> dict[str, int]:
    """For each operator, the bytes of its state, without the copy for a view that is being filled."""
    return {o: sum(r.size_bytes for r in manifest.refs_of(o)) for o in manifest.operators if not o.startswith(COPY)}


def _grown(before: StateManifest, now: StateManifest) -> dict[str, int]:
    """For each operator whose state changed in size, the change in bytes."""
    grown = held_bytes(now)
    for operator_id, size in held_bytes(before).items():
        grown[operator_id] = grown.get(operator_id, 0) - size
    return {i: size for i, size in grown.items() if size}
