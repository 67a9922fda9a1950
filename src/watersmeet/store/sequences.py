"""The states of sequences: numbers that the writer hands out, each at most once.

Numbers are reserved in a file before anybody has them. The numbers that a writer had reserved when its process was
killed are skipped.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from watersmeet.catalog import Numbering, NumberSequence
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout, writer_file, writer_files

#: The numbers that are reserved at once: the least, and the most, up to which they double.
_BLOCK: Final = 32
_MOST_BLOCK: Final = 1024


@dataclass(frozen=True)
class Count:
    """The state of a sequence. last: its last number, or the one that is next if none was `called` yet."""

    last: int
    called: bool = False

    def advanced(self, numbers: Numbering, count: int) -> Count:
        """The state after more numbers."""
        return replace(self, last=int(self.next(numbers, count)[-1]), called=True) if count else self

    def left(self, numbers: Numbering) -> int | None:
        """How many numbers can follow; None for any."""
        if numbers.cycles:
            return None
        end = numbers.bounds[numbers.step > 0]
        return max(0, (end - self.last) // numbers.step + (not self.called))

    def next(self, numbers: Numbering, count: int) -> np.ndarray[Any, np.dtype[np.object_]]:
        """The next numbers. Raises SEQUENCE_LIMIT without its name."""
        left = self.left(numbers)
        if left is not None and count > left:
            raise error("SEQUENCE_LIMIT", "")
        first, step = self.last + numbers.step * self.called, numbers.step
        if left is not None:
            return np.array(range(first, first + count * step, step), object)
        least, greatest = numbers.bounds
        found: list[range] = []
        while count:
            if not least <= first <= greatest:
                first = least if step > 0 else greatest
            piece = range(first, (greatest + 1 if step > 0 else least - 1), step)[:count]
            found.append(piece)
            count -= len(piece)
            first = piece[-1] + step
        return np.array([*itertools.chain(*found)], object)


@dataclass
class _Open:
    """A sequence in use.

    saved: the state in its file, after the reserved numbers, of which `left` are not taken. block: how many numbers are
    reserved next.
    """

    count: Count
    saved: Count
    left: int = 0
    block: int = _BLOCK


class Sequences:
    """The states of all sequences, of the writer. Thread-safe; its lock is an innermost one."""

    def __init__(self, layout: Layout, log: CommitLog, ids: Iterable[str]) -> None:
        """ids: those of the existing sequences; files of others are deleted."""
        self._layout, self._log = layout, log
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        storage.remove_temporaries(layout.sequences)
        files = writer_files(layout.sequences)
        newest = {f.id: f for f in files if f.writer <= log.writer}
        for sequence_id in ids:
            file = newest.get(sequence_id)
            if file is None:
                raise error("DATABASE_DAMAGED", f"the numbers of sequence {sequence_id} are missing from sequences")
            count = _read(layout, file.path)
            self._open[sequence_id] = _Open(count, count)
            self._write(sequence_id, count)  # own number: ignores later writes of an earlier writer
        for file in files:
            if file.writer < log.writer or (file.writer == log.writer and file.id not in self._open):
                storage.discard(file.path)

    def begin(self, sequence: NumberSequence) -> None:
        """Adds a new sequence, or one that had been rolled back with this id."""
        self.put(sequence, Count(sequence.numbers.first))

    def put(self, sequence: NumberSequence, count: Count) -> None:
        """Sets the state of a sequence. Raises WRITER_FENCED."""
        self._log.check()
        with self._lock:
            self._write(sequence.id, count)
            self._open[sequence.id] = _Open(count, count)

    def take(self, sequence: NumberSequence, count: int) -> np.ndarray[Any, np.dtype[np.object_]]:
        """The next numbers, which are reserved when this returns. Raises SEQUENCE_LIMIT, WRITER_FENCED."""
        with self._lock:
            state, numbers = self._open[sequence.id], sequence.numbers
            with naming(sequence):
                found = state.count.next(numbers, count)
            if count > state.left:
                left = state.count.left(numbers)
                reserved = max(count, state.block if left is None else min(left, state.block))
                self._log.check()
                saved = state.count.advanced(numbers, reserved)
                self._write(sequence.id, saved)
                state.saved, state.left = saved, reserved
                state.block = min(2 * state.block, _MOST_BLOCK)
            state.count = state.count.advanced(numbers, count)
            state.left -= count
            return found

    def count(self, sequence_id: str) -> Count:
        """The state of a sequence."""
        with self._lock:
            return self._open[sequence_id].count

    def forget(self, ids: Iterable[str]) -> None:
        """Deletes the numbers of dropped sequences."""
        with self._lock:
            for sequence_id in ids:
                if self._open.pop(sequence_id, None) is not None:
                    storage.discard(writer_file(self._layout.sequences, sequence_id, self._log.writer))

    def close(self) -> None:
        """Returns the reserved numbers that nobody took."""
        with self._lock, contextlib.suppress(Error, OSError):
            self._log.check()
            for sequence_id, state in self._open.items():
                if state.saved != state.count:
                    self._write(sequence_id, state.count)
                    state.saved, state.left = state.count, 0

    def _write(self, sequence_id: str, count: Count) -> None:
        path = writer_file(self._layout.sequences, sequence_id, self._log.writer)
        text = self._layout.seal(path, {"last": count.last, "called": count.called})
        storage.replace_file(path, text, durable=self._layout.durable)


def _read(layout: Layout, path: Any) -> Count:
    value = layout.unseal(path)
    return Count(int(value["last"]), bool(value["called"]))


def saved_count(layout: Layout, sequence: NumberSequence) -> Count:
    """The state of a sequence that its writer saved last, for readers."""
    path = {f.id: f.path for f in writer_files(layout.sequences)}.get(sequence.id)
    return Count(sequence.numbers.first) if path is None else _read(layout, path)


@contextlib.contextmanager
def naming(sequence: NumberSequence) -> Iterator[None]:
    """Adds the message to errors SEQUENCE_LIMIT."""
    try:
        yield
    except Error as err:
        if err.condition == "SEQUENCE_LIMIT":
            end, word = sequence.numbers.bounds[sequence.numbers.step > 0], "maximum"
            word = word if sequence.numbers.step > 0 else "minimum"
            err.message = f'nextval: reached {word} value of sequence "{sequence.shown}" ({end})'
        raise
