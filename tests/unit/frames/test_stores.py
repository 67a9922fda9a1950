"""Where the state of a bucket is: chunks in Spark's map state, copies in local files."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from pyspark import cloudpickle
from tests.unit.frames.query import Query
from tests.unit.frames.test_regular import joined, rows

from watersmeet.errors import Error
from watersmeet.frames import sessions, stores
from watersmeet.frames.buckets import check_plan, run_bucket
from watersmeet.frames.building import Options
from watersmeet.frames.circuits import duration_us
from watersmeet.frames.stores import Batch, LocalRuns, PathStore, SparkStore
from watersmeet.frames.tasks import Encoder
from watersmeet.runtime.spark.shipping import bucket_keys, spark_hash

POOL = ThreadPoolExecutor(4)


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
    monkeypatch.setattr(stores, "CHUNK_BYTES", 100)
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


class InFiles(Query):
    """A join whose state is in files, with `retained` micro-batches to go back to."""

    def __init__(self, options: Options, folder, retained: int = 3, buckets: int = 2) -> None:
        super().__init__(options, buckets=buckets)
        self.folder = folder
        self.retained = retained
        self.contents: dict[int, Counter] = {-1: Counter()}

    def run(self, number: int, new, run: str, *, commits: int = 2) -> Counter:
        """Micro-batch `number` from its start. commits: how many buckets are run to the end."""
        self.content = Counter(self.contents[number - 1])
        batch = Batch("query", run, number, self.retained)
        check = partial(check_plan, self.shape)
        self.stores = [PathStore(self.folder, batch, b, check, POOL) for b in range(self.shape.buckets)]
        found = self.batch(*new)
        for store in self.stores[:commits]:
            store.commit()
        self.contents[number] = Counter(self.content)
        return found

    def files(self) -> set[str]:
        return set(os.listdir(self.folder / "query" / "runs"))


@pytest.mark.parametrize("seed", range(3))
def test_each_micro_batch_counts_once_in_files(tmp_path, seed):
    """Attempts that fail, repetitions, and a query that goes back to an earlier micro-batch."""
    rng = random.Random(seed)
    query = InFiles(Options(on="k", how="full"), tmp_path)
    inputs: list = []
    for number in range(25):
        inputs.append((rows(rng, 9, "l"), rows(rng, 9, "r")))
        if rng.random() < 0.3:
            query.run(number, inputs[number], f"failed{number}", commits=rng.randrange(2))
        if number > 5 and rng.random() < 0.2:  # a user deletes the last entries of the checkpoint
            for again in range(number - rng.randrange(1, 3), number):
                query.run(again, inputs[again], f"back{number}")
        found = query.run(number, inputs[number], f"run{number}")
        assert query.run(number, inputs[number], f"run{number}") == found
        old = [r for new in inputs for r in new[0]], [r for new in inputs for r in new[1]]
        assert query.content == joined(*old, "full", lambda a, b: True)
    kept = {f"{n:012}-{b:05}" for n in range(21, 25) for b in range(2)}
    assert set(os.listdir(tmp_path / "query" / "manifests")) == kept
    for name in kept:  # each of them can still be the start of a micro-batch
        state = json.loads((tmp_path / "query" / "manifests" / name).read_text())
        assert set(re.findall(r"\d+-\d+-[0-9a-f]{32}", state["texts"]["manifest"])) <= query.files()
    assert len(query.files()) < 60


def test_a_micro_batch_that_is_evaluated_in_part_is_an_error(tmp_path):
    query = InFiles(Options(on="k"), tmp_path)
    rng = random.Random(1)
    query.run(0, (rows(rng, 9, "l"), rows(rng, 9, "r")), "a")
    query.run(1, (rows(rng, 9, "l"), rows(rng, 9, "r")), "a", commits=1)
    with pytest.raises(Error, match="micro-batch 1 was evaluated only in part") as caught:
        query.run(2, (rows(rng, 9, "l"), rows(rng, 9, "r")), "a")
    assert caught.value.condition == "STATE_MISMATCH"


def test_a_state_that_is_not_in_its_folder_is_an_error(tmp_path):
    query = InFiles(Options(on="k"), tmp_path)
    rng = random.Random(1)
    query.run(0, (rows(rng, 9, "l"), rows(rng, 9, "r")), "a")
    query.folder = tmp_path / "elsewhere"
    with pytest.raises(Error, match="its state is not in") as caught:
        query.run(1, ([], []), "a")
    assert caught.value.condition == "STATE_MISMATCH"
    query.folder = tmp_path
    for name in query.files():
        (tmp_path / "query" / "runs" / name).unlink()
    with pytest.raises(Error, match="that the state names is not in") as caught:
        query.run(1, (rows(rng, 9, "l"), []), "a")
    assert caught.value.condition == "STATE_DAMAGED"


def test_two_joins_in_one_folder_are_an_error(tmp_path):
    query, other = InFiles(Options(on="k"), tmp_path), InFiles(Options(on="k"), tmp_path)
    rng = random.Random(1)
    query.run(0, (rows(rng, 9, "l"), rows(rng, 9, "r")), "a")
    with pytest.raises(Error, match="two joins") as caught:
        other.run(0, (rows(rng, 9, "x"), rows(rng, 9, "y")), "a")
    assert caught.value.condition == "STATE_MISMATCH"
    left = InFiles(Options(on="k", how="left"), tmp_path)
    left.contents[0] = Counter()
    with pytest.raises(Error, match="written by another join") as caught:
        left.run(1, (rows(rng, 9, "x"), []), "a")
    assert caught.value.condition == "STATE_MISMATCH"


def test_another_number_of_buckets_in_files_is_an_error_of_every_bucket(tmp_path):
    query, more = InFiles(Options(on="k"), tmp_path), InFiles(Options(on="k"), tmp_path, buckets=3)
    rng = random.Random(1)
    query.run(0, (rows(rng, 9, "l"), rows(rng, 9, "r")), "a")
    check = partial(check_plan, more.shape)
    for bucket in range(3):
        with pytest.raises(Error, match="buckets=2, this is 3") as caught:
            run_bucket(more.shape, bucket, [], PathStore(tmp_path, Batch("query", "b", 1, 3), bucket, check, POOL))
        assert caught.value.condition == "STATE_MISMATCH"


def test_tasks_carry_what_they_need(tmp_path):
    """A worker that can't import the package loads it with the operator."""
    query = Query(Options(on="k", how="left"))
    function = sessions.carried(Encoder(query.shape, 0, (0, 1), None))
    (tmp_path / "task").write_bytes(cloudpickle.dumps(function))
    code = f"""
import os, pickle, sys
sys.path[:] = [p for p in sys.path if not os.path.exists(os.path.join(p, "watersmeet", "__init__.py"))]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f)]
import pyspark.cloudpickle, pyarrow as pa, datetime
function = pickle.load(open({str(tmp_path / "task")!r}, "rb"))
assert "watersmeet" not in sys.modules
now = datetime.datetime(2026, 1, 1)
batch = pa.RecordBatch.from_pydict({{"k": pa.array([1], pa.int32()), "ts": [now], "v": ["x"], "day": [now.date()]}})
print(sum(b.num_rows for b in function([batch])), sys.modules["watersmeet"].__file__)
"""
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path), "PYTHONPATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.stderr == ""
    pieces, file = found.stdout.split()
    assert pieces == "1"
    assert file.startswith(str(tmp_path / "watersmeet-"))


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({"spark.master": "local[2]"}, 2),
        ({"spark.master": "local[3,4]"}, 3),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[64]"}, 16),
        ({"spark.master": "local-cluster[2,2,1024]"}, 16),
        ({"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "2"}, 6),
        ({"spark.master": "yarn", "spark.executor.instances": "3"}, 16),
        (
            {
                "spark.master": "yarn",
                "spark.executor.instances": "3",
                "spark.executor.cores": "2",
                "spark.dynamicAllocation.enabled": "true",
            },
            16,
        ),
    ],
)
def test_buckets_are_run_by_as_many_tasks_as_cores(settings, tasks):
    assert sessions.stateful_tasks(SimpleNamespace(conf=settings), 16) == tasks


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
