"""A crash at every single step of the store: afterwards nothing is lost and nothing is doubled."""

from __future__ import annotations

import random

import pytest
from tests.unit.runtime.kit import GROUPED, JOINED, TOTAL, Kit, two_tables

from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import Budget
from watersmeet.system import files

STEPS = ("create_file", "replace_file", "publish_content", "publish_file", "sync_directory", "remove_files")


class CrashError(BaseException):
    pass


class Crasher:
    """Lets the process "die" before or after its n-th step in the file system."""

    def __init__(self, monkeypatch):
        self.left = None
        self.after = False
        for name in STEPS:
            monkeypatch.setattr(files, name, self.wrapped(getattr(files, name)))

    def wrapped(self, function):
        def step(*args, **kwargs):
            if self.left is None:
                return function(*args, **kwargs)
            self.left -= 1
            if self.left < 0:
                raise CrashError  # Dead processes do nothing more.
            if self.left == 0 and not self.after:
                raise CrashError
            result = function(*args, **kwargs)
            if self.left == 0:
                raise CrashError
            return result

        return step


def engine(db):
    return InProcessEngine(db, make_coordinator=lambda db: Coordinator(db, budget=Budget(first_rows=8, max_rows=16)))


def rows(rng, count):
    return [(rng.randrange(5), rng.choice(["x", "y", None]), 1) for _ in range(count)]


def numbers(rng, count):
    return [(rng.randrange(5), rng.randrange(9), 1) for _ in range(count)]


def history(kit, rng):
    """Transactions, epochs, views made before and after the data, a view dropped."""
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.change(a=rows(rng, 10), b=numbers(rng, 5))
    kit.engine.flush()
    kit.change(a=rows(rng, 20), b=numbers(rng, 9))
    kit.view("grouped", *GROUPED)
    kit.change(b=numbers(rng, 3))
    kit.engine.flush()
    kit.view("total", *TOTAL)
    kit.change(a=rows(rng, 4))
    kit.drop("total")
    kit.change(b=numbers(rng, 2))
    kit.engine.flush()


def recover(kit):
    """A new process opens the database, as a session does."""
    kit.crash()
    kit = kit.reopen()
    kit.engine.start()
    kit.install()
    kit.engine.flush()
    return kit


@pytest.mark.parametrize(
    ("buckets", "stride"),
    [
        (1, 9),
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.thorough),
    ],
)
def test_crash_at_every_step(tmp_path, buckets, stride, monkeypatch):
    crasher = Crasher(monkeypatch)
    number = 0
    finished = 0
    while finished < 1:
        after = bool(number % 2)
        kit = Kit(tmp_path / f"db{number}", buckets=buckets, make_engine=engine)
        two_tables(kit)
        crasher.left, crasher.after = number // 2 + 1, after
        rng = random.Random(number)
        try:
            history(kit, rng)
            finished += 1
        except CrashError:
            pass
        crasher.left = None
        kit = recover(kit)
        kit.check_by_content()
        kit.change(a=rows(rng, 3), b=numbers(rng, 3))
        kit.engine.flush()
        kit.check_by_content()
        kit.close()
        number += stride
    assert number > 40


@pytest.mark.thorough
def test_crash_while_recovering(tmp_path, monkeypatch):
    crasher = Crasher(monkeypatch)
    rng = random.Random(5)
    for number in range(60):
        kit = Kit(tmp_path / f"db{number}", buckets=rng.choice([1, 2, 3]), make_engine=engine)
        two_tables(kit)
        crasher.left, crasher.after = rng.randrange(10, 80), rng.random() < 0.5
        try:
            history(kit, rng)
        except CrashError:
            pass
        for _ in range(3):
            crasher.left = rng.randrange(1, 12)
            try:
                kit = recover(kit)
            except CrashError:
                continue
        crasher.left = None
        kit = recover(kit)
        kit.check_by_content()
        kit.close()
