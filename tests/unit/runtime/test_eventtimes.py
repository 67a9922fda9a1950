"""Late rows and the sources' numbers."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.catalog import EventTime, Table
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Scan, Sink, Union
from watersmeet.runtime.eventtimes import Idleness, observe, promised, risen
from watersmeet.runtime.taskcontract import Observed
from watersmeet.values.types import TIMESTAMP, Field
from watersmeet.values.watermarks import NOW

DAY = 86_400_000_000
TIME = EventTime("ts", delay_us=20, ahead_us=100)


def seen_by(times, below, *, kind=None, diff=None, now_us=1000, event_time=TIME):
    seen = Observed()
    column = pa.chunked_array([pa.array(times, kind or pa.timestamp("us"))])
    signs = np.ones(len(times), np.int64) if diff is None else np.array(diff, np.int64)
    kept = observe(column, signs, event_time, below, now_us, seen)
    return (None if kept is None else kept.tolist()), seen


def test_late_is_below_and_equal_is_kept():
    assert seen_by([49, 50, 51], 50) == ([False, True, True], Observed(31, late=1))


def test_nothing_is_late_in_history():
    assert seen_by([1, 2], None) == (None, Observed(-18))


def test_null_is_neither_late_nor_counted():
    assert seen_by([None, 60], 50) == (None, Observed(40))
    assert seen_by([None, None], 50) == (None, Observed(None))
    assert seen_by([None, 1], 50) == ([True, False], Observed(-19, late=1))


def test_what_goes_is_never_late():
    assert seen_by([1, 1], 50, diff=[-1, 1]) == ([True, False], Observed(-19, late=1))


def test_absurd_times_are_kept_and_do_not_count():
    assert seen_by([60, 1101, 10**17], 50) == (None, Observed(40, ahead=2))
    assert seen_by([10**17], 50) == (None, Observed(None, ahead=1))
    assert seen_by([1100], 50) == (None, Observed(1080))


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.date32()])
def test_other_time_types(kind):
    days = [dt.date(1970, 1, 2), None, dt.date(1970, 1, 3)]
    values = days if kind == pa.date32() else [d and dt.datetime(d.year, d.month, d.day, tzinfo=dt.UTC) for d in days]
    time = EventTime("d", DAY, DAY)
    assert seen_by(values, 2 * DAY, kind=kind, now_us=5 * DAY, event_time=time) == (
        [False, True, True],
        Observed(DAY, late=1),
    )


def test_infinite_times():
    """They are told apart from real ones, and no number leaves the range of 64 bits."""
    least = -(1 << 63)
    assert seen_by([least + 1], None) == (None, Observed(least))
    assert seen_by([least + 1, 60], least) == (None, Observed(40))
    dates = pa.array([-(1 << 31) + 1, None, 0, (1 << 31) - 1], pa.int32()).view(pa.date32())
    assert seen_by(dates[:1], None, kind=pa.date32(), event_time=EventTime("d", DAY, DAY)) == (None, Observed(least))
    found = seen_by(dates, -DAY, kind=pa.date32(), event_time=EventTime("d", DAY, DAY))
    assert found == ([False, True, True, True], Observed(-DAY, late=1, ahead=1))


def test_no_rows():
    assert seen_by([], 50) == (None, Observed(None))


def test_numbers_only_rise_and_history_promises_nothing():
    assert risen({"a": 5, "b": 1}, {"a": 3, "c": 7}, {"c": 8}) == {"a": 5, "b": 1, "c": 8}
    assert promised({"a": 5}, 9, complete=True) == {"a": 5, NOW: 9}
    assert promised({"a": 5}, 9, complete=False) == {NOW: 9}


def test_asking_which_inputs_are_idle_changes_nothing():
    """An input without rows is idle after it has been watched for its timeout, however often that was asked before."""
    fields, known = (Field("ts", TIMESTAMP),), {}
    for name, idle_us in (("a", None), ("b", 20)):
        known[name] = Table(name, name, fields, event_time=EventTime("ts", 0, idle_us=idle_us))
    scans = [Scan((), fields, append_only=True, relation_id=i, names=("ts",)) for i in known]
    union = Union(tuple(s.id for s in scans), fields, append_only=True)
    sink = Sink((union.id,), fields, append_only=True, relation_id="v")
    circuit = Circuit(1, (*scans, union, sink), dict.fromkeys((*(s.id for s in scans), union.id, sink.id), 0))
    idleness = Idleness()
    for now_us in (0, 50):
        assert idleness.idle(circuit, known, now_us) == {}
    idleness.watch(circuit, 50)
    assert idleness.idle(circuit, known, 69) == {}
    assert idleness.idle(circuit, known, 70) == {"b": ("a",)}
    idleness.note(["b"], 71)
    assert idleness.idle(circuit, known, 90) == {}
