"""The target `rotating_file`: files in a directory that grow for a while, then get their final names and never change
again.

    orders/
        orders-2024-05-01_10:00:00.csv
        .watersmeet/<database>-<sink>/commits/…     see `files.target`
        .watersmeet/<database>-<sink>/writers/00000001-00000003/7.growing

A file grows in the directory of its writer. A manifest contains its length with all delivered rows. The next writer
continues with a copy of this length, to which the earlier writer can't write. A file that is full or old enough gets
its footer and its final name. This step is not part of a delivery: if it fails, the file continues to grow.

SQLstream, "Integrating the File System": FILE_ROTATION_TIME, FILE_ROTATION_SIZE, FILENAME_PREFIX.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import ROWTIME
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import (
    Delivery,
    SinkBatch,
    SinkOffset,
    Target,
    connector_for,
    rows_that_came,
)
from watersmeet.connectors.files.target import (
    STATE,
    Writers,
    check_directory,
    is_after,
    offset_of,
    unavailable,
)
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import plain_text
from watersmeet.formats.writers import evaluate_text
from watersmeet.formats.writingfiles import GrowingFormat, growing_format
from watersmeet.system import files
from watersmeet.system.process import fault
from watersmeet.values.types import Schema

#: Options that `connectors.foreignstreams` writes, not users.
SINK_OPTIONS: Final = OptionSet(
    "rotating_file of sinks",
    (
        OptionSpec("path", "The directory."),
        OptionSpec("seconds", "The span of a file; 0: any.", default="0"),
        OptionSpec("bytes", "The size of a full file; 0: any.", "integer", default=0),
        OptionSpec("by_rowtime", "Whether spans are of ROWTIME, not of the clock.", "flag", default=True),
        OptionSpec("column", "The column whose last value is part of the name."),
        OptionSpec("prefix", "The beginning of names."),
        OptionSpec("suffix", "The end of names."),
        OptionSpec("date_format", "The format of the time in names.", default="%Y-%m-%d-%H:%M:%S"),
        OptionSpec("growing", "The name of the file that grows."),
    ),
)


@dataclass(frozen=True)
class _Rotation:
    """The options of rotation. root: the directory. most_us: the length of the time spans of files, counted from 1970;
    0: unlimited. most_bytes: the size at which a file is full; 0: unlimited. by_rowtime: whether spans are of ROWTIME
    instead of the clock. column: the column whose last value is part of the name. growing: the name of the growing file
    in the directory; empty: it has no name.
    """

    root: Path
    most_us: int
    most_bytes: int
    by_rowtime: bool
    column: str | None
    prefix: str
    suffix: str
    date_format: str
    growing: str

    def name(self, begun_us: int, last: str | None) -> str:
        """The final name of a file. begun_us: the time of its first row. last: the value of `column` in its last
        row.
        """
        begun = datetime.fromtimestamp(begun_us / 1e6, UTC)
        date = begun.strftime(self.date_format.replace("%f", f"{begun.microsecond // 1000:03}"))
        value = "" if last is None else "_" + "".join("_" if c in "/\0" else c for c in last)
        return f"{self.prefix}{date}{value}{self.suffix}"


@dataclass(frozen=True)
class _Growing:
    """A growing file. staged: its name in the directory of the writer. name: its final name. begun_us: the time of its
    first row. made_us: the time of its creation. size_bytes: its length.
    """

    staged: str
    name: str
    begun_us: int
    made_us: int
    size_bytes: int


def _rotation(delivery: Delivery) -> _Rotation:
    options = SINK_OPTIONS.read(delivery.connector)
    column = options.given("column")
    known = [c.name for c in delivery.columns]
    if column is not None and column not in known:
        raise error(
            "CONNECTOR_OPTION",
            f'FILE_ROTATION_WATERMARK_COLUMN names "{column}", which is no column',
            hint=did_you_mean(column, known),
        )
    return _Rotation(
        Path(options.text("path")),
        int(float(options.text("seconds")) * 1e6),
        options.number("bytes"),
        options.flag("by_rowtime") and ROWTIME in known,
        column,
        options.text("prefix"),
        options.text("suffix"),
        options.text("date_format"),
        options.text("growing"),
    )


def _written(delivery: Delivery) -> Schema:
    """The written columns of the files."""
    return tuple(c for c in delivery.columns if c.name not in delivery.message_parts)


class RotatingTarget(Target):
    """See `base.targets.Target`."""

    def __init__(self, delivery: Delivery, database_id: str, clock_us: Callable[[], int]) -> None:
        self._rotation = _rotation(delivery)
        self._columns = _written(delivery)
        self._types = {c.name: c.type for c in delivery.columns}
        self._format: GrowingFormat = growing_format(self._columns, delivery.format.encoding, delivery.format.options)
        state = self._rotation.root / STATE / f"{database_id}-{delivery.target_id}"
        self._writers = Writers(self._rotation.root, state)
        self._clock_us = clock_us
        self._newest: SinkOffset | None = None
        self._growing: _Growing | None = None
        self._number = 0

    def look(self) -> None:
        """Raises CONNECTOR_OPTION for a directory that can't be written."""
        check_directory(self._rotation.root)

    def open(self, generation: int) -> SinkOffset | None:
        with unavailable(self._rotation.root):
            self._writers.make_directories()
            self._writers.enter(generation)
            fault("rotating.entered")
            self._writers.shut_out()
            fault("rotating.fenced")
            manifests = self._writers.manifests()
            grown: list[_Growing] = []
            if manifests:
                manifest = self._writers.manifest(manifests[-1])
                self._newest = offset_of(manifest)
                self._number = manifest["made"]
                grown = [f for f in (_Growing(**fields) for fields in manifest["growing"]) if self._take_over(f)]
            fault("rotating.copied")
            for left in self._writers.left():
                shutil.rmtree(left)
            self._forget(manifests[:-1])
            self._go_on(grown)
            return self._newest

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        wanted = [p for p in batches if is_after(p.offset, self._newest)]
        with unavailable(self._rotation.root), self._writers.shut_out_as_error():
            for group in self._groups(wanted):
                self._deliver(group)

    def rest(self) -> None:
        growing, most_us = self._growing, self._rotation.most_us
        if growing is not None and most_us and self._clock_us() >= growing.made_us + most_us:
            with unavailable(self._rotation.root), self._writers.shut_out_as_error():
                self._go_on([growing], finish=True)

    def close(self) -> None:
        growing, self._growing = self._growing, None
        if growing is not None:
            with contextlib.suppress(OSError, Error):  # the next writer continues the file
                self._finish(growing)

    def _take_over(self, file: _Growing) -> bool:
        """Continues a copy of an earlier writer's unfinished file; False if that file already has its final name."""
        for left in self._writers.left():
            before = left / file.staged
            self._hide(before)
            if before.exists() and before.stat().st_nlink == 1:
                copy = self._writers.own / file.staged
                with before.open("rb") as source, copy.open("xb") as target:
                    files.copy_bytes(source, target, file.size_bytes)
                files.sync_file(copy)
                return True
        return False

    def _groups(self, batches: Sequence[SinkBatch]) -> Iterator[list[SinkBatch]]:
        """Groups of batches that are written together, each about as large as a file at most."""
        group: list[SinkBatch] = []
        size = 0
        for batch in batches:
            if group and self._rotation.most_bytes and size + batch.rows.nbytes > self._rotation.most_bytes:
                yield group
                group, size = [], 0
            group.append(batch)
            size += batch.rows.nbytes
        if group:
            yield group

    def _deliver(self, batches: list[SinkBatch]) -> None:
        """Writes all rows, then the manifest with the lengths of the files."""
        grown = [] if self._growing is None else [self._growing]
        self._growing = None  # if this fails, only the manifest contains the length of the file
        touched = []
        for rows, time_us in self._spans(batches):
            if not grown or not self._has_room(grown[-1], time_us):
                grown.append(self._begin(time_us))
            grown[-1] = self._append(grown[-1], rows)
            touched.append(grown[-1].staged)
        fault("rotating.written")
        for staged in dict.fromkeys(touched):
            files.sync_file(self._writers.own / staged)
        files.sync_directory(self._writers.own)
        older = self._writers.manifests()
        self._writers.commit(batches[-1], {"growing": [asdict(f) for f in grown], "made": self._number})
        self._newest = batches[-1].offset
        self._go_on(grown)
        self._forget(older)

    def _spans(self, batches: Sequence[SinkBatch]) -> Iterator[tuple[pa.Table, int]]:
        """The consecutive rows of each file's time span, and the time of the first row."""
        for batch in batches:
            rows = rows_that_came(batch)
            if not len(rows):
                continue
            if not self._rotation.by_rowtime:
                yield rows, batch.time_us
                continue
            times = rows.column(ROWTIME).combine_chunks().cast(pa.timestamp("us")).cast(pa.int64())
            times_us = times.fill_null(batch.time_us).to_numpy(zero_copy_only=False)
            if not self._rotation.most_us:
                yield rows, int(times_us[0])
                continue
            spans = np.maximum.accumulate(times_us // self._rotation.most_us)
            begins = np.flatnonzero(np.diff(spans, prepend=spans[0] - 1))
            for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
                yield rows.slice(begin, end - begin), int(times_us[begin])

    def _has_room(self, file: _Growing, time_us: int) -> bool:
        most_us, most_bytes = self._rotation.most_us, self._rotation.most_bytes
        if most_bytes and file.size_bytes >= most_bytes:
            return False
        return not most_us or time_us // most_us <= file.begun_us // most_us

    def _begin(self, time_us: int) -> _Growing:
        self._number += 1
        return _Growing(f"{self._number}.growing", "", time_us, self._clock_us(), 0)

    def _append(self, file: _Growing, rows: pa.Table) -> _Growing:
        path = self._writers.own / file.staged
        with path.open("ab" if file.size_bytes else "wb") as out:
            out.write(b"" if file.size_bytes else self._format.head)
            out.write(self._format.rows(rows))
            size = out.tell()
        last, column = None, self._rotation.column
        if column is not None:
            texts = evaluate_text([rows.column(column).slice(len(rows) - 1)], plain_text("t0", self._types[column]))
            last = (texts[0].as_py() or b"").decode()
        return replace(file, size_bytes=size, name=self._rotation.name(file.begun_us, last))

    def _go_on(self, grown: Sequence[_Growing], *, finish: bool = False) -> None:
        """Gives all files but the last one their final names, and also the last one if it is full."""
        self._growing = None
        for file in grown:
            if file is grown[-1] and not finish and self._has_room(file, file.begun_us):
                self._growing = file
                self._show(self._writers.own / file.staged)
            else:
                self._finish(file)

    def _show(self, path: Path) -> None:
        """Gives the growing file its temporary name. Raises DELIVERY_REFUSED if another file has this name."""
        name = self._rotation.growing
        if name and not self._is_shown(path):
            try:
                os.link(path, self._rotation.root / name)
            except FileExistsError as cause:
                raise error(
                    "DELIVERY_REFUSED",
                    f'there is a file "{name}" already, which is no file of this pump',
                    hint="Remove it, or choose another ORIGINAL_FILENAME.",
                ) from cause

    def _hide(self, path: Path) -> None:
        """Removes the temporary name of a file that no longer grows."""
        if self._rotation.growing and self._is_shown(path):
            files.discard(self._rotation.root / self._rotation.growing)

    def _is_shown(self, path: Path) -> bool:
        try:
            return path.samefile(self._rotation.root / self._rotation.growing)
        except FileNotFoundError:
            return False

    def _finish(self, file: _Growing) -> None:
        """Writes the footer of a file and gives it its final name, or another name if that name is taken."""
        path = self._writers.own / file.staged
        with path.open("ab") as out:
            out.write(self._format.tail)
        files.sync_file(path)
        fault("rotating.full")
        suffix = self._rotation.suffix
        stem = file.name.removesuffix(suffix)
        for number in itertools.count(1):
            name = file.name if number == 1 else f"{stem}-{number}{suffix}"
            with contextlib.suppress(FileExistsError):
                os.link(path, self._rotation.root / name)
                break
        fault("rotating.named")
        self._hide(path)
        files.discard(path)
        files.sync_directory(self._rotation.root)

    def _forget(self, manifests: Sequence[str]) -> None:
        """Deletes the manifests that the newest one replaces."""
        for name in manifests:
            files.discard(self._writers.commits / name)


def _target(delivery: Delivery, database_id: str) -> RotatingTarget:
    if delivery.format.rows != "plain":
        raise error("FEATURE_NOT_SUPPORTED", f"FORMAT {delivery.format.rows.upper()} for files that grow")
    return RotatingTarget(delivery, database_id, lambda: time.time_ns() // 1000)


CONNECTOR: Final = connector_for(_target, None)
