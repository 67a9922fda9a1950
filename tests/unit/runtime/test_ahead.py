"""What is made ahead of its use: one for each use, of the key that is asked for."""

from __future__ import annotations

import itertools
import threading

import pytest

from watersmeet.runtime.spark.jobs import Ahead


class Maker:
    """Makes pairs of a key and a number that no other pair has."""

    def __init__(self):
        self.numbers = itertools.count()
        self.made = threading.Semaphore(0)

    def __call__(self, key):
        found = key, next(self.numbers)
        self.made.release()
        return found


def test_each_serves_once_and_the_next_one_is_made_meanwhile():
    maker = Maker()
    ahead = Ahead(maker)
    assert ahead.take("a") == ("a", 0)
    for _ in range(2):
        assert maker.made.acquire(timeout=60), "one that is taken, and one ahead"
    assert ahead.take("a") == ("a", 1)
    assert maker.made.acquire(timeout=60)
    assert ahead.take("b") == ("b", 3), "what was made for another key is of no use"
    ahead.close()


def test_what_failed_ahead_is_tried_again_by_who_takes_it():
    problems = iter([None, KeyError("ahead"), None, KeyError("ahead"), KeyError("at once")])

    def make(key):
        problem = next(problems)
        if problem is not None:
            raise problem
        return key

    ahead = Ahead(make)
    assert ahead.take(1) == 1
    assert ahead.take(1) == 1
    with pytest.raises(KeyError, match="at once"):
        ahead.take(1)
    ahead.close()


def test_nothing_is_made_once_it_is_closed():
    maker = Maker()
    ahead = Ahead(maker)
    ahead.close()
    with pytest.raises(RuntimeError):
        ahead.take("a")
