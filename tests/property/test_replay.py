"""Replay: an epoch that is run again with its input in another order, and cut otherwise, gives the same bytes.

Output, state and what is told of them are compared, at one, two and three buckets, floats included. What a task of
stage 0 publishes of an append-only or stateless view depends on which rows it got, so that is compared as content.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from tests.property.runs import run
from tests.thorough import mostly_slow
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import Frame, decode, encode
from watersmeet.runtime import inprocess, tasks
from watersmeet.runtime.stages import stored_state
from watersmeet.runtime.taskcontract import CONTROL, RECEIPT, Receipt
from watersmeet.runtime.workers import Workers
from watersmeet.store.segmentfiles import SegmentFiles

_read_slices = tasks.read_slices
_run_epoch = inprocess.run_epoch


class Again:
    """Runs each epoch three times: as it is, with each task's input shuffled, and with other tasks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.epochs = 0
        self.rows = 0

    def run_epoch(self, db, circuit, intent, failures):
        receipts = sorted(_run_epoch(db, circuit, intent, failures), key=lambda r: (r.stage, r.bucket))
        if not intent.has_work:
            return receipts
        self.epochs += 1
        self.rows += sum(sum(b.rows for b in c.blobs) for r in receipts for c in r.relations.values())
        job = inprocess.job_of(db, circuit, intent, Workers())
        free = {s.relation_id for s in circuit.sinks if s.append_only}
        segments = SegmentFiles(db.layout.segments)
        shuffled = self.shuffled(job, circuit)
        assert [told(r, free) for r in shuffled] == [told(r, free) for r in receipts]
        assert content(segments, shuffled, free) == content(segments, receipts, free)
        assert state(segments, shuffled) == state(segments, receipts)
        if circuit.buckets > 1:
            other = self.shuffled(replace(job, intent=self.cut(intent, circuit.buckets)), circuit)
            later = [[told(r, free, segment=True) for r in rs if r.stage] for rs in (other, shuffled)]
            assert later[0] == later[1]
            assert content(segments, other, None) == content(segments, receipts, None)
        return receipts

    def cut(self, intent, buckets):
        """The same slices in other tasks."""
        slices = intent.slices
        made = [[] for _ in range(self.random.randint(1, buckets))]
        for piece in slices:
            self.random.choice(made).append(piece)
        return replace(intent, tasks=tuple(tuple(t) for t in made))

    def shuffled(self, job, circuit) -> list[Receipt]:
        with mock.patch.object(tasks, "read_slices", self.read_slices):
            frames = [f for task in range(max(1, len(job.intent.tasks))) for f in tasks.run_sources(job, task)]
        for stage in range(1, circuit.last_stage + 1):
            by_bucket: dict[int, list[Frame]] = {}
            for frame in self.mixed(frames):
                by_bucket.setdefault(frame.bucket, []).append(frame)
            buckets = sorted(by_bucket)
            self.random.shuffle(buckets)
            frames = [f for b in buckets for f in tasks.run_bucket(job, stage, by_bucket[b])]
        found = [Receipt.from_bytes(bytes(f.body)) for f in frames if f.channel == RECEIPT]
        return sorted(found, key=lambda r: (r.stage, r.bucket))

    def read_slices(self, *arguments):
        found = _read_slices(*arguments)
        for scan, deltas in found.deltas.items():
            found.deltas[scan] = self.pieces(deltas)
        return found

    def mixed(self, frames: list[Frame]) -> list[Frame]:
        """The frames of each channel and bucket with their rows in another order, cut otherwise, in another order."""
        result = [f for f in frames if f.channel in (RECEIPT, CONTROL)]
        groups: dict[tuple[int, str], list[Delta]] = {}
        for frame in frames:
            if frame.channel not in (RECEIPT, CONTROL):
                groups.setdefault((frame.bucket, frame.channel), []).append(decode(frame.body))
        for (bucket, channel), deltas in groups.items():
            result += [Frame(bucket, channel, n, encode(d)) for n, d in enumerate(self.pieces(deltas))]
        self.random.shuffle(result)
        return result

    def pieces(self, deltas: list[Delta]) -> list[Delta]:
        whole = Delta.concat(deltas)
        # A row that comes several times comes as several rows.
        repeats = np.where((np.abs(whole.diff) > 1) & (np.abs(whole.diff) < 10), np.abs(whole.diff), 1)
        whole = Delta(whole.columns, np.where(repeats > 1, np.sign(whole.diff), whole.diff)).take(
            np.repeat(np.arange(whole.num_rows), repeats)
        )
        order = list(range(whole.num_rows))
        self.random.shuffle(order)
        whole = whole.take(np.array(order, np.int64))
        cuts = sorted(
            self.random.sample(range(1, whole.num_rows), min(whole.num_rows - 1, self.random.randint(0, 3)))
            if whole.num_rows > 1
            else []
        )
        return [whole.take(np.arange(a, b)) for a, b in zip([0, *cuts], [*cuts, whole.num_rows], strict=True)]


def told(receipt: Receipt, free: set[str], *, segment: bool = False) -> tuple:
    """What a receipt says, but for tasks that publish rows in the order in which they came.

    segment: with the names of files, which are the same only if a task does the same stages and buckets.
    """
    if free & receipt.relations.keys():
        return receipt.stage, receipt.bucket
    if segment:
        return receipt.stage, receipt.bucket, receipt.segment, receipt.relations
    sizes = {i: [(b.length_bytes, b.rows) for b in c.blobs] for i, c in receipt.relations.items()}
    return receipt.stage, receipt.bucket, sizes, receipt.grown, receipt.segment is None


def state(segments: SegmentFiles, receipts: list[Receipt]) -> dict[tuple, bytes]:
    """The bytes of each run that the epoch has left, by stage and bucket, operator, trace and place in it."""
    return {
        (r.stage, r.bucket, operator, name, i): segments.read_blob(ref.blob).to_pybytes()
        for r in receipts
        if r.segment is not None
        for operator, traces in stored_state(segments, r.segment, f"{r.stage}/{r.bucket}").operators.items()
        for name, refs in traces.items()
        for i, ref in enumerate(refs)
    }


def content(segments: SegmentFiles, receipts: list[Receipt], free: set[str] | None) -> dict[str, Counter]:
    """By relation, the rows that were published as a multiset. free: only of these relations."""
    found: dict[str, Counter] = {}
    for receipt in receipts:
        for relation_id, change in receipt.relations.items():
            if free is None or relation_id in free:
                for blob in change.blobs:
                    table, diff = segments.read_change(blob)
                    rows = zip(*(map(str, c.to_pylist()) for c in table.columns), strict=True)
                    counted = found.setdefault(relation_id, Counter())
                    for row, n in zip(rows, diff.tolist(), strict=True):
                        counted[row] += n
    return {i: Counter({k: n for k, n in c.items() if n}) for i, c in found.items()}


def replay(seed: int, buckets: int) -> None:
    again = Again(seed)
    with mock.patch.object(inprocess, "run_epoch", again.run_epoch):
        run(seed, runtime="inprocess", parallelism=buckets)
    assert again.epochs


@pytest.mark.parametrize("seed", mostly_slow(range(3000, 3003), 0))
def test_replay(seed: int) -> None:
    replay(seed, 1 + seed % 3)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_many_replays(block: int) -> None:
    for seed in range(3100 + 10 * block, 3110 + 10 * block):
        replay(seed, 1 + seed % 3)
