"""Frames that wait in files between the stages of an epoch on Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.kernel.kernel_tools import schema_of

from watersmeet.circuit.operators import Exchange
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import Frame, Spool, Unwritten, count_rows, decode, encode, receive, send
from watersmeet.kernel.runs.run import arrange
from watersmeet.runtime.spark import jobs, worker
from watersmeet.runtime.spark.worker import empty, picked_up, put_down
from watersmeet.values.types import BIGINT, VARCHAR

LARGE = 64 << 10
BODIES = [b"", b"small", os.urandom(LARGE), b"x" * (LARGE - 1), os.urandom(LARGE + 7), os.urandom(3 * LARGE)]
FRAMES = [Frame(i, f"channel {i}", i, pa.py_buffer(body)) for i, body in enumerate(BODIES)]


def shown(frames):
    return [(f.bucket, f.channel, f.seq, bytes(f.body)) for f in frames]


def test_large_bodies_wait_in_one_file(tmp_path):
    sent = list(put_down(FRAMES, str(tmp_path)))
    assert [s.file is not None for s in sent] == [False, False, True, False, True, True]
    assert len({s.file for s in sent if s.file is not None}) == len(os.listdir(tmp_path)) == 1
    assert shown(picked_up(sent)) == shown(FRAMES)


def test_another_attempt_writes_another_file(tmp_path):
    first, second = (list(put_down(FRAMES, str(tmp_path))) for _ in range(2))
    assert {s.file for s in first if s.file is not None}.isdisjoint(s.file for s in second)
    assert shown(picked_up(first)) == shown(picked_up(second)) == shown(FRAMES)


def test_without_a_folder_they_are_sent():
    sent = list(put_down(FRAMES, None))
    assert all(s.file is None for s in sent)
    assert shown(picked_up(sent)) == shown(FRAMES)


def test_what_an_epoch_left_goes_but_not_the_lock_of_the_folder(tmp_path):
    (tmp_path / ".lock").touch()
    sent = list(put_down(FRAMES, str(tmp_path)))
    empty(tmp_path)
    assert os.listdir(tmp_path) == [".lock"]
    with pytest.raises(FileNotFoundError):
        list(picked_up(sent))


@pytest.mark.parametrize("has_folder", [True, False])
def test_as_batches_of_spark_and_as_its_rows(tmp_path, has_folder):
    """Tasks take batches; the driver takes rows, and a receipt may be large, too."""
    batches = list(worker._batches(FRAMES, str(tmp_path) if has_folder else None))
    assert shown(picked_up(s for batch in batches for s in worker._sent(batch))) == shown(FRAMES)
    rows = [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]
    assert shown(picked_up(map(jobs._sent, rows))) == shown(FRAMES)


@pytest.mark.parametrize("has_folder", [True, False])
def test_large_columns_are_written_as_if_they_had_been_encoded(tmp_path, has_folder):
    """A body for all buckets is in the file once."""
    numbers = pa.array([None if i % 7 == 0 else i for i in range(20_000)], pa.int64())
    texts = pa.array([f"text {i}" for i in range(20_000)])
    delta = Delta(col.positional([numbers.slice(3), texts.slice(3)]), np.arange(19_997) % 3 - 1)
    exchange = Exchange(("scan-0",), schema_of(BIGINT, VARCHAR), True, (0,), "broadcast")
    frames = list(send(exchange, delta, 3, 5))
    assert all(isinstance(f.body, Unwritten) for f in frames)
    sent = list(put_down(frames, str(tmp_path) if has_folder else None))
    assert shown(picked_up(sent)) == [(f.bucket, f.channel, f.seq, bytes(encode(delta))) for f in frames]
    assert {count_rows(f.body) for f in (*frames, *picked_up(sent))} == {19_997}
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) == (encode(delta).size if has_folder else 0)
    spool = Spool()
    assert [spool.add(f.body) for f in frames] == [0, 1, 2]
    for body in (*spool.buffers(), frames[0].body):
        found = decode(body)
        assert found.columns.equals(delta.columns)
        assert found.diff.tolist() == delta.diff.tolist()


def test_what_is_known_of_sent_changes_stays_with_the_sender():
    """Each bucket gets the same as from an encoded body: runs have references of their own in each bucket."""
    schema = schema_of(BIGINT)
    delta = replace(Delta(col.positional([pa.array(range(20_000))]), np.ones(20_000, np.int64)), net=True)
    delta.runs[0,] = arrange(delta, (0,))
    exchange = Exchange(("scan-0",), schema, True, (0,), "broadcast")
    frames = list(send(exchange, delta, 2, 5))
    assert all(isinstance(f.body, Unwritten) for f in frames)
    one, other = (receive([frame]) for frame in frames)
    assert not one.net
    assert not one.runs
    assert arrange(one, (0,)) is not arrange(other, (0,))
    assert [c.num_chunks for c in one.columns.columns] == [1]
