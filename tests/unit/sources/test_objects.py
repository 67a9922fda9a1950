"""Finding objects, and reading them as they were: against a real server of S3's protocol."""

from __future__ import annotations

import threading

import pytest
from scripts.servers.s3 import REGION
from tests.unit.sources.helpers import T0, Driver, S, relation

from watersmeet.connectors.base.sources import Notification
from watersmeet.connectors.files.source import FileSource
from watersmeet.connectors.registry import open_source


def object_source(bucket, **options: str) -> FileSource:
    where = {
        "s3__bucket_name": bucket.name,
        "s3__region_name": REGION,
        "s3__endpoint_url": bucket.server.url,
        "s3__credentials__access": bucket.keys[0],
        "s3__credentials__secret": bucket.keys[1],
    }
    source = open_source(relation(connector="s3", **where, **({"format": "csv"} | options)))
    assert isinstance(source, FileSource)
    return source


def test_objects_are_listed_at_a_rate_by_a_thread(bucket):
    source = object_source(bucket, refresh__interval__sec="30")
    woken = threading.Event()
    source.listen(Notification(woken))
    driver = Driver(source)

    def after_a_look(now_us: int) -> list[tuple[int, str]]:
        woken.clear()
        assert driver.once(now_us, fresh=False) == []  # a look begins
        assert woken.wait(30)
        return driver.once(now_us, fresh=False)

    bucket.put("1.csv", "a,b\n1,x\n")
    assert after_a_look(T0) == [(1, "x")]
    bucket.put("2.csv", "a,b\n2,y\n")
    woken.clear()
    for second in (1, 15, 29):
        assert driver.once(T0 + second * S, fresh=False) == []
    assert not woken.is_set()
    assert after_a_look(T0 + 30 * S) == [(2, "y")]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.csv", ["a.csv", "d/b.csv", "d/e/c.csv"]),  # RisingWave: `*` stands for `/`, too
        ("d/*.csv", ["b.csv", "e/c.csv"]),
        ("d/?.csv", ["b.csv"]),
        ("d/b.csv", ["b.csv"]),
        ("[ax].csv", ["a.csv"]),
        ("none/*", []),
    ],
)
def test_patterns_are_those_of_risingwave(bucket, pattern, found):
    for name in ("a.csv", "d/b.csv", "d/e/c.csv", "d/x.json"):
        bucket.put(name, "a,b\n1,x\n")
    driver = Driver(object_source(bucket, match_pattern=pattern))
    assert len(driver.all()) == len(found)
    assert sorted(piece.path for piece in driver.slices) == found


def test_a_slice_of_an_object_that_was_replaced_or_deleted_is_set_aside(bucket, monkeypatch):
    monkeypatch.setattr("watersmeet.objectstores.stores._KEPT_BLOCKS", 0)  # as if another process had cut the slices
    source = object_source(bucket)
    for name in ("1.csv", "2.csv", "3.csv"):
        bucket.put(name, f"a,b\n{name[0]},x\n")
    poll = source.poll(None, 1 << 40, 1 << 40, T0, fresh=True)
    bucket.put("1.csv", "a,b\n7,x\n")
    bucket.delete("2.csv")
    driver = Driver(source)
    assert driver.read(poll.slices) == [(3, "x")]
    assert [(d["file"], d["reason"].partition(":")[0]) for d in driver.dead] == [
        ("1.csv", "replaced"),
        ("2.csv", "vanished"),
    ]


def test_histories_read_what_was_read(bucket, monkeypatch):
    monkeypatch.setattr("watersmeet.objectstores.stores._KEPT_BLOCKS", 0)
    driver = Driver(object_source(bucket))
    for name in ("1.csv", "2.csv"):
        bucket.put(name, f"a,b\n{name[0]},x\n")
    assert driver.all() == [(1, "x"), (2, "x")]
    history = driver.source.history(None, 1 << 40, 1 << 40)
    assert driver.read(history.slices) == [(1, "x"), (2, "x")]
    bucket.put("1.csv", "a,b\n7,x\n")
    history = driver.source.history(None, 1 << 40, 1 << 40)
    assert driver.read(history.slices) == [(2, "x")]
    assert [d["file"] for d in driver.dead] == ["1.csv"]


def test_a_store_that_stops_to_answer_while_objects_are_cut_loses_nothing(own_bucket):
    driver = Driver(object_source(own_bucket, refresh__interval__sec="1"))
    for i in range(3):
        own_bucket.put(f"{i}.csv", f"a,b\n{i},x\n")
    driver.source._look(T0, full=True)
    own_bucket.server.pause()
    own_bucket.server.kill()
    assert driver.once(T0, fresh=False) == []
    status = driver.source.status()
    assert status["state"] == "waiting"
    assert "can't be reached" in status["reason"]
    assert status["unreadable"] == []
