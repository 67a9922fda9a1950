"""Two writers of one database, without its lock: one is stopped at any step and goes on when others have worked.

Whatever the step, there is one history: what was acknowledged is in it, what was refused is not, and no reader ever
finds two contents under one number. Each case fixes the order of all steps of both (`PausingOs`); every step is tried.

The cases catch what they are for: they fail if fences are deleted, and if who opens the database does not look at the
low_water.
"""

from __future__ import annotations

import pytest
from pausing import PausingOs
from tests.memorystore import URL, MemoryStore, use

from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.store import readers
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout, file_numbers
from watersmeet.store.readers import raise_low_water, read_low_water
from watersmeet.system import files


class Witness:
    """Readers that look again and again, one that follows and one that begins anew each time.

    No number may ever have two contents, and the history never becomes shorter.
    """

    def __init__(self, layout):
        self.layout = layout
        self.seen = {}
        self.following = CommitLog(layout)

    def look(self):
        for log in (self.following, CommitLog(self.layout)):
            log._cache.clear()  # what the files say counts
            head = log.head()
            for number in {head, *file_numbers(self.layout.commits)} - {0}:
                found = log.find(number)
                assert found is None or self.seen.setdefault(number, found) == found, f"two contents of {number}"
            assert head >= max(self.seen, default=0), "the history became shorter"


class Writer:
    """One writer of the log. A commit leaves its mark in all later ones (`rejected` adds up), also when it is gone."""

    def __init__(self, layout, name):
        self.layout = layout
        self.name = name
        self.log = None
        self.acknowledged = []
        self.refused = []

    def open(self):
        self.log = CommitLog(self.layout, writer=True)

    def commit(self):
        mark = f"{self.name}{len(self.acknowledged) + len(self.refused)}"
        try:
            self.log.append(Commit("transaction", rejected={mark: 1}))
        except Error as refusal:
            assert refusal.condition == "WRITER_FENCED"
            self.refused.append(mark)
        else:
            self.acknowledged.append(mark)

    def clean(self):
        """Leaves nothing but the head and fences, as the store does when everything is in a snapshot."""
        before, head = read_low_water(self.layout), self.log.head()
        if head - 1 > before.number:
            above = [c for n in range(before.number + 1, head) if (c := self.log.find(n)) is not None]
            raise_low_water(self.layout, before, head - 1, above)
        there = readers.commits_there(self.layout, read_low_water(self.layout))
        storage.remove_files(self.layout.commit(n) for n in there if n < head)


def commits(writer):
    writer.commit()
    writer.commit()


def cleans(writer):
    writer.commit()
    writer.clean()
    writer.commit()


def opens(writer):
    writer.open()
    writer.commit()


def rivals(layout, count):
    return [Writer(layout, f"rival{n}-") for n in range(count)]


def work_of(rivals, *, clean):
    """They open the database, one after the other, unless they have it open, and commit."""
    for rival in rivals:
        if rival.log is None:
            rival.open()
        for _ in range(3):
            rival.commit()
            if clean:
                rival.clean()


def run(path, monkeypatch, work, count, *, clean, living, at):
    """One case: `work`, stopped before step `at` while `count` rivals work. Its number of steps.

    path: None for an object store. living: a rival has the database open when the work begins.
    """
    store = use(monkeypatch, MemoryStore(), "/none") if path is None else None
    layout = Layout(URL if path is None else path, durable=False)
    paused = Writer(layout, "paused")
    paused.open()
    paused.commit()
    witness = Witness(layout)
    met = rivals(layout, count)
    if living:
        met[0].open()
    pausing = PausingOs(lambda: work(paused), at, witness.look)
    if store is None:
        monkeypatch.setattr(files, "os", pausing)
        monkeypatch.setattr(files, "open", pausing.read, raising=False)
    else:
        store.before = lambda kind, name: pausing._step(kind)
    if pausing.start():
        work_of(met, clean=clean)
    witness.look()
    pausing.go_on()
    witness.look()
    if pausing.failure is not None:
        raise pausing.failure
    writers = [w for w in (paused, *met) if w.log is not None]
    newest = max(writers, key=lambda w: w.log.writer)
    newest.commit()
    assert not newest.refused
    head = CommitLog(layout)
    history = head.read(head.head()).rejected
    assert history == {mark: 1 for w in writers for mark in w.acknowledged}
    for writer in writers:
        if writer is not newest:
            with pytest.raises(Error) as refusal:
                writer.log.check()
            assert refusal.value.condition == "WRITER_FENCED"
    return len(pausing.names)


def try_all(tmp_path, monkeypatch, work, count, *, clean, living=False):
    """tmp_path: None for an object store."""
    at, steps = 0, 1
    while at < steps:
        at += 1
        steps = run(tmp_path and tmp_path / f"{at}", monkeypatch, work, count, clean=clean, living=living, at=at)
    return steps


@pytest.mark.parametrize("clean", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("work", [commits, cleans, opens])
@pytest.mark.parametrize("in_store", [False, True])
def test_a_writer_that_is_stopped_at_any_step(tmp_path, monkeypatch, work, count, clean, in_store):
    steps = try_all(None if in_store else tmp_path, monkeypatch, work, count, clean=clean)
    assert steps > (1 if in_store else 5)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("in_store", [False, True])
def test_who_opens_is_stopped_at_any_step_while_another_one_writes(tmp_path, monkeypatch, clean, in_store):
    try_all(None if in_store else tmp_path, monkeypatch, opens, 1, clean=clean, living=True)


@pytest.mark.parametrize("in_store", [False, True])
def test_without_fences_both_succeed(tmp_path, monkeypatch, in_store):
    monkeypatch.setattr(readers, "commits_there", lambda layout, low_water: file_numbers(layout.commits))
    with pytest.raises(AssertionError):
        try_all(None if in_store else tmp_path, monkeypatch, commits, 1, clean=True)


@pytest.mark.parametrize("in_store", [False, True])
def test_without_the_low_water_mark_both_succeed(tmp_path, monkeypatch, in_store):
    """The one that opens it has found a next number that was taken, and cleaned away, before it could take it."""
    monkeypatch.setattr(CommitLog, "_is_kept", lambda self, commit: True)
    with pytest.raises(AssertionError):
        try_all(None if in_store else tmp_path, monkeypatch, opens, 1, clean=True, living=True)


def test_a_fence_is_never_deleted(tmp_path, monkeypatch):
    """Of more writers than the low_water knows, too."""
    monkeypatch.setattr(readers, "_KNOWN_REIGNS", 3)
    layout = Layout(tmp_path, durable=False)
    first = Writer(layout, "first")
    first.open()
    fences = [1]
    for number in range(7):
        rival = Writer(layout, f"rival{number}-")
        rival.open()
        fences.append(rival.log.began)
        for _ in range(3):
            rival.commit()
        rival.clean()
    assert file_numbers(layout.commits) == [*fences, rival.log.head()]
    first.commit()
    assert first.refused
    assert len(read_low_water(layout).reigns) == 3
