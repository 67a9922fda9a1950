"""Where the state of a bucket is: chunks in Spark's map state, copies in local files."""

from __future__ import annotations

import os
import random
from datetime import timedelta

import pytest
from tests.unit.frames.query import Query
from tests.unit.frames.test_regular import joined, rows

from watersmeet.errors import Error
from watersmeet.frames import tasks
from watersmeet.frames.building import Options
from watersmeet.frames.circuits import duration_us
from watersmeet.frames.tasks import LocalRuns, SparkStore
from watersmeet.runtime.spark.shipping import bucket_keys, spark_hash


class Values(dict):
    """Spark's map state."""

    def getValue(self, key):
        return self.get(key)

    def updateValue(self, key, value):
        self[key] = value

    def removeKey(self, key):
        del self[key]


def store_in(folder=None, most_bytes: int = 1 << 20) -> SparkStore:
    return SparkStore(Values(), Values(), None if folder is None else LocalRuns(folder, most_bytes))


@pytest.mark.parametrize("local", [True, False])
def test_a_join_over_chunks(tmp_path, monkeypatch, local):
    monkeypatch.setattr(tasks, "CHUNK_BYTES", 100)
    query = Query(Options(on="k", how="full"), buckets=2)
    query.stores = [store_in(tmp_path / str(b) if local else None) for b in range(2)]
    rng = random.Random(4)
    old: tuple[list, list] = ([], [])
    for _ in range(12):
        new = rows(rng, 9, "l"), rows(rng, 9, "r")
        query.batch(*new)
        old[0].extend(new[0])
        old[1].extend(new[1])
    assert query.content == joined(*old, "full", lambda a, b: True)
    for bucket, store in enumerate(query.stores):
        assert len(store._chunks) > len({run for run, _ in store._chunks}) > 1
        # What is no more needed is gone, in Spark's state and in the files.
        if local:
            assert set(os.listdir(tmp_path / str(bucket))) == {run for run, _ in store._chunks}


def test_local_files_come_back_from_spark_and_make_room(tmp_path):
    store = store_in(tmp_path, 1000)
    refs = [store.add([bytes([n]) * 300], 1) for n in range(5)]
    assert len(os.listdir(tmp_path)) == 3
    assert [store.read(r).to_pybytes()[0] for r in refs] == [0, 1, 2, 3, 4]
    (tmp_path / refs[4].file).write_bytes(b"cut short")
    assert store.read(refs[4]).to_pybytes() == b"\x04" * 300


def test_a_run_that_is_not_there_is_an_error():
    store = store_in()
    ref = store.add([b"x" * 300], 1)
    store._chunks[ref.file, 0] = (b"y" * 300,)
    with pytest.raises(Error, match="not in the state store") as caught:
        store.read(ref)
    assert caught.value.condition == "STATE_DAMAGED"
    store._chunks.clear()
    with pytest.raises(Error, match="not in the state store"):
        store.read(ref)


def test_every_bucket_has_a_partition_of_its_own():
    assert (spark_hash(0), spark_hash(1)) == (933211791, -559580957)
    for buckets in (1, 2, 3, 8, 200):
        assert [spark_hash(k) % buckets for k in bucket_keys(buckets)] == list(range(buckets))


def test_lengths_of_time():
    assert duration_us("1 hour 30 minutes", "x") == 5_400_000_000
    assert duration_us("INTERVAL -5 seconds", "x") == -5_000_000
    assert duration_us("1m", "x") == duration_us("60s", "x") == duration_us("1 min", "x") == 60_000_000
    assert duration_us("1h30m", "x") == duration_us("90 mins", "x") == 5_400_000_000
    assert duration_us(timedelta(days=13_343_998), "x") == 13_343_998 * 86_400_000_000
    for long in (timedelta.max, "-99999999 days"):
        with pytest.raises(Error, match="too long"):
            duration_us(long, "x")
    for bad in ("1 month", "1mo", "5", "", "1 minute 3"):
        with pytest.raises(Error, match="not a length of time"):
            duration_us(bad, "x")
