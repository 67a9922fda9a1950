"""Defects for the simulation to find: what the product would do if it lacked one of its precautions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any
from unittest import mock

from watersmeet.database import plans
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.base import StoreProblem
from watersmeet.runtime import tasks
from watersmeet.store import readers, retention, segmentfiles
from watersmeet.store.checkpoints import Checkpoint
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import file_numbers
from watersmeet.store.readers import LowWaterMark
from watersmeet.store.retention import Cleaner, Keep
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system import files
from watersmeet.values.serialization import to_json


def _replaced(place: object, name: str, value: object) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    return lambda: mock.patch.object(place, name, value)


_create = databasefiles.create


def _believing(place: Any, data: bytes) -> None:
    """What a store answers about a commit is taken for what happened."""
    if "/commits/" not in place.path:
        _create(place, data)
        return
    try:
        made = databasefiles._sent(place).create(place.path, bytes(data))
    except StoreProblem as problem:
        raise databasefiles.failure(problem) from problem
    if not made:
        raise FileExistsError(place)


def _put(self: CommitLog, commit: Commit) -> int:
    path = self._layout.commit(commit.number)
    data = self._layout.seal(path, to_json(commit))
    try:
        storage.create_file(path, data, durable=self._layout.durable)
    except FileExistsError:
        return 0
    return len(data)


@contextlib.contextmanager
def _answers_believed() -> Iterator[None]:
    with mock.patch.object(databasefiles, "create", _believing), mock.patch.object(CommitLog, "_put", _put):
        yield


class _Late(set[str]):
    """What the state lies in, which is found out when it is asked for: commits may be gone by then."""

    def __init__(self, log: CommitLog, last: Commit | None, segments: SegmentFiles) -> None:
        super().__init__()
        self._log, self._last, self._segments = log, last, segments

    @cached_property
    def _found(self) -> set[str]:
        numbers = {self._last.last_epoch, self._last.epoch_before} if self._last else set()
        left = numbers & {*file_numbers(self._log._layout.commits)}
        sections = {section for number in left for section in self._log.read(number).sections}
        return {f for segment, place in sorted(sections) for f in self._segments.referenced_files(segment, place)}

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __or__(self, others: Any) -> Any:
        return self._found | others


_run = Cleaner.run


def _run_unasked(self: Cleaner, newest: Checkpoint, history: Iterable[Keep] = ()) -> None:
    with mock.patch.object(self._log, "check", lambda: None):
        _run(self, newest, history)


_unasked = _replaced(Cleaner, "run", _run_unasked)


@contextlib.contextmanager
def _late_and_unasked() -> Iterator[None]:
    with _unasked(), mock.patch.object(retention, "state_files", _Late):
        yield


@contextlib.contextmanager
def _other_names_each_time() -> Iterator[None]:
    real = tasks.epoch_prefix
    numbers = iter(range(1_000_000))

    def prefix(epoch: int, writer: int, *place: int) -> str:
        return real(epoch, writer, *place, next(numbers))

    with mock.patch.object(tasks, "epoch_prefix", prefix):
        yield


_old_enough = Cleaner._old_enough


def _below_the_low_water_mark(self: Cleaner, newest: Checkpoint, low_water: int) -> int:
    del low_water
    return _old_enough(self, newest, 0)


def _discard_all(saved: Any, relation_ids: Any, writer: int) -> None:
    del writer
    storage.remove_files(f.path for f in saved if f.id in relation_ids)


DEFECTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    # A commit number that was cleaned away is taken again.
    "fences are deleted": _replaced(LowWaterMark, "without_fences", lambda low_water, numbers: [*numbers]),
    "answers are believed": _answers_believed,
    "state of what is left, and nobody is asked": _late_and_unasked,
    "files of running epochs are deleted": _replaced(retention, "_is_past", lambda name, epoch, snapshot: True),
    "readers are not asked": _replaced(readers, "read_leases", lambda layout: []),
    "directories are not flushed": _replaced(files, "sync_directory", lambda directory: None),
    "checksums are not looked at": _replaced(segmentfiles._Mapped, "is_sound", lambda self, offset, length: True),
    "a clean-up looks below the low-water mark": _replaced(Cleaner, "_old_enough", _below_the_low_water_mark),
    "plans of later writers are deleted": _replaced(plans, "_discard", _discard_all),
    "what fails is not explained": _replaced(CommitLog, "explaining", lambda self: contextlib.nullcontext()),
    "tasks name their files as they like": _other_names_each_time,
}
