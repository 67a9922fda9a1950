"""The log in an object store in which any one request goes wrong, in each way in which one can.

What was acknowledged is in the history and what was refused is not; a commit whose fate nobody told is there once or
not at all, and its writer is not believed again. A request that seemed lost may also be done much later.
"""

from __future__ import annotations

import contextlib

import pytest
from tests.memorystore import URL, WRITES, MemoryStore, use
from tests.thorough import mostly_slow
from tests.unit.store.test_two_writers import Witness, Writer

from watersmeet.errors import Error
from watersmeet.objectstores import databasefiles
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.values.serialization import to_json


def work(first, second):
    """The first writer commits and cleans up, then another one takes over, and the first one tries again."""
    for writer in (first, second):
        writer.open()
        writer.commit()
        writer.commit()
        writer.clean()
        writer.commit()
    first.commit()


class Hurried(Writer):
    """A writer that may be told nothing about a commit."""

    def commit(self):
        mark = f"{self.name}{len(self.acknowledged) + len(self.refused)}"
        try:
            super().commit()
        except AssertionError:
            # Not WRITER_FENCED: nobody knows.
            self.unknown.append(mark)
            self.refused.append(mark)

    def __init__(self, layout, name):
        super().__init__(layout, name)
        self.unknown = []


def run(monkeypatch, fault, at, later, patience):
    """One case; the number of requests that write."""
    store = use(monkeypatch, MemoryStore(fault, at, later), "/none")
    monkeypatch.setenv("WATERSMEET_STORE_PATIENCE_SECONDS", patience)
    with contextlib.suppress(Error):
        Layout(URL)
    layout = Layout(URL)
    witness = Witness(layout)
    first, second = Hurried(layout, "first"), Hurried(layout, "second")
    try:
        work(first, second)
    except Error as cause:
        assert cause.condition == "DATABASE_ACCESS"
    witness.look()
    store.deliver()
    witness.look()
    last = Hurried(layout, "last")
    last.open()
    last.commit()
    assert last.acknowledged
    witness.look()
    log = CommitLog(layout)
    history = log.read(log.head()).rejected
    acknowledged = {m: 1 for w in (first, second, last) for m in w.acknowledged}
    unknown = {m for w in (first, second, last) for m in w.unknown}
    assert {m: n for m, n in history.items() if m not in unknown} == acknowledged
    assert all(history[m] == 1 for m in unknown & history.keys())
    return store.writes


@pytest.mark.parametrize("later", [None, *mostly_slow([1, 4, 16], 1, 3, fresh=False)])
@pytest.mark.parametrize("fault", WRITES)
def test_any_request_goes_wrong(monkeypatch, fault, later):
    at, writes = 0, 1
    while at < writes:
        at += 1
        writes = run(monkeypatch, fault, at, later, "60")
    assert writes > 10


@pytest.mark.parametrize("fault", ["lost", "answer lost", "delayed"])
def test_any_request_goes_wrong_and_is_not_tried_again(monkeypatch, fault):
    at, writes = 0, 1
    while at < writes:
        at += 1
        writes = run(monkeypatch, fault, at, None, "0")
    assert writes > 10


def test_an_answer_that_is_believed_is_noticed(monkeypatch):
    """The planted fault: a name that is taken is believed to be taken by the writer's own request."""

    def believing(self, commit):
        data = self._layout.seal(self._layout.commit(commit.number), to_json(commit))
        databasefiles._sent(self._layout.root).create(self._layout.commit(commit.number).path, data)
        return len(data)

    monkeypatch.setattr(CommitLog, "_put", believing)
    with pytest.raises(AssertionError):
        for at in range(1, 16):
            run(monkeypatch, "conflict", at, None, "60")
