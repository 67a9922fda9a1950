"""A computation that is given up from another thread: inside it, at any place, and never after it."""

from __future__ import annotations

import threading

import pytest
from tests.waiting import until

from watersmeet.database.sessions.cancellation import Cancellation
from watersmeet.errors import Error


def test_a_computation_ends_at_any_place():
    cancellation, begun, ended = Cancellation(), threading.Event(), []

    def endless():
        begun.set()
        while True:
            try:
                [n for n in range(100)]
            except Exception:
                pass

    def run():
        try:
            cancellation.computing(cancellation.computing, endless)
        except Error as err:
            ended.append(err.condition)
        ended.append(sum(range(1000)))  # nothing reaches the thread any more

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    cancellation.cancel()
    cancellation.cancel()
    thread.join()
    assert ended == ["QUERY_CANCELED", 499500]
    with pytest.raises(Error):
        cancellation.computing(int)
    cancellation.reset()
    assert cancellation.computing(int, "7") == 7


def test_what_is_done_is_not_ended():
    cancellation = Cancellation()
    stop = threading.Event()

    def cancels():
        while not stop.is_set():
            cancellation.cancel()

    thread = threading.Thread(target=cancels)
    thread.start()
    try:
        done = 0
        for _ in range(2000):
            cancellation.reset()
            try:
                cancellation.computing(sum, range(50))
            except Error as err:
                assert err.condition == "QUERY_CANCELED"
            done += 1
    finally:
        stop.set()
        thread.join()
    assert done == 2000


def test_what_runs_is_ended_and_then_forgotten():
    cancellation, calls = Cancellation(), []
    with cancellation.within(lambda: calls.append(1)), cancellation.within(lambda: calls.append(2)):
        threading.Thread(target=cancellation.cancel).start()
        until(lambda: calls)
    cancellation.cancel()
    assert calls == [2]
    with pytest.raises(Error), cancellation.within(lambda: None):
        raise AssertionError
