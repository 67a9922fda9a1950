"""The target `file`: a directory of Parquet, JSON or CSV files. Each batch is written once and atomically.

    orders/
        day=2024-05-01/s12-00000001-000000000017-000000000250-0.parquet
        .watersmeet/owner                   the sink that owns the directory
        .watersmeet/writers/00000001-00000003/   files that the newest writer prepares
        .watersmeet/commits/00000001-000000000017-000000.manifest

A writer prepares files in its own directory. Creating the manifest commits them; then the writer moves them to their
final names. The next writer moves committed files that a failed writer left.

Renaming the directory of a writer fences it off: all its later accesses use the old name and fail, regardless of where
and how long it was stopped.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target, connector_for, rows_that_came
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.encoders import changed_keys
from watersmeet.formats.valuetexts import EXACT_JSON, plain_text
from watersmeet.formats.writers import evaluate_text, json_writer
from watersmeet.formats.writingfiles import FILE_FORMATS, FileFormat, FileWriter
from watersmeet.system import files
from watersmeet.system.process import fault
from watersmeet.values.types import BIGINT, SMALLINT, Field, Schema


class Writers:
    """The writers of a target. root: the target for messages. state: the directory of manifests and writers.

    own: the directory of this writer after `enter`.
    """

    def __init__(self, root: Path, state: Path) -> None:
        self._root = root
        self.commits = state / "commits"
        self._writers = state / "writers"
        self.own = self._writers

    def make_directories(self) -> None:
        """Creates missing directories."""
        for directory in (self.commits, self._writers):
            files.make_directory(directory)

    def enter(self, generation: int) -> None:
        """Creates the directory of this writer, with the highest number. Raises WRITER_FENCED if a newer generation
        exists.
        """
        while True:
            numbers = [_number(n) for n in files.list_names(self._writers)]
            generations = [g for g, _ in numbers] + [int(n[:8]) for n in self.manifests()[-1:]]
            if max(generations, default=0) > generation:
                raise self.fenced()
            self.own = self._writers / f"{generation:08}-{max((n for _, n in numbers), default=0) + 1:08}"
            try:
                self.own.mkdir()
            except FileExistsError:
                continue
            # Of two simultaneous writers, one detects the other here.
            if max(map(_rank, files.list_names(self._writers))) > _rank(self.own.name):
                raise self.fenced()
            return

    def shut_out(self) -> None:
        """Fences off all earlier writers."""
        mine = _rank(self.own.name)
        for name in files.list_names(self._writers):
            if _rank(name) < mine and not name.endswith(".out"):
                with contextlib.suppress(FileNotFoundError):  # a writer that was opened later has already renamed it
                    os.rename(self._writers / name, self._writers / f"{name}.out")
        if not self.own.exists():
            raise self.fenced()

    def left(self) -> list[Path]:
        """The directories of writers that are fenced off."""
        return [self._writers / n for n in files.list_names(self._writers) if n.endswith(".out")]

    def manifests(self) -> list[str]:
        """The names of all manifests, newest last."""
        return files.list_names(self.commits)

    def manifest(self, name: str) -> dict[str, Any]:
        """The content of a manifest."""
        found: dict[str, Any] = json.loads(files.read_file(self.commits / name))
        return found

    def commit(self, batch: SinkBatch, content: dict[str, Any]) -> dict[str, Any]:
        """Creates the manifest of all batches up to one, which commits this batch; returns the manifest.

        Raises WRITER_FENCED.
        """
        offset = dict(zip(SinkOffset._fields, batch.offset, strict=True))
        manifest = {**offset, "time_us": batch.time_us, **content}
        prepared = self.own / f"{stem_of(batch.offset)}.manifest"
        files.discard(prepared)
        files.create_file(prepared, json.dumps(manifest).encode(), durable=True)
        fault("files.prepared")
        try:
            os.link(prepared, self.commits / prepared.name)
        except FileExistsError:
            raise self.fenced() from None
        fault("files.committed")
        files.sync_directory(self.commits)
        return manifest

    @contextlib.contextmanager
    def shut_out_as_error(self) -> Iterator[None]:
        """Turns failures after the writer's directory was renamed into WRITER_FENCED."""
        own = self.own
        try:
            yield
        except (OSError, Error) as cause:
            if isinstance(cause, Error) and cause.condition == "WRITER_FENCED":
                raise
            if self._writers.is_dir() and not own.exists():
                raise self.fenced() from cause
            raise

    def fenced(self) -> Error:
        """The error WRITER_FENCED."""
        return error(
            "WRITER_FENCED",
            f'another process delivers to "{self._root}" now',
            hint="Nothing is lost: it goes on where this one was.",
        )


@contextlib.contextmanager
def unavailable(target: Path | str) -> Iterator[None]:
    """Turns errors of the file system, such as a full disk, into Unavailable with the target and the reason."""
    try:
        yield
    except Unavailable:
        raise
    except OSError as cause:
        raise Unavailable(f"{target} can't be written: {cause.strerror or cause}") from cause
    except Error as cause:
        if cause.condition in ("DISK_FULL", "DATABASE_ACCESS"):
            raise Unavailable(f"{target} can't be written: {cause.message}") from cause
        raise


def is_after(offset: SinkOffset, newest: SinkOffset | None) -> bool:
    """Whether an offset is after the newest delivered offset."""
    return newest is None or offset[:3] > newest[:3]


def stem_of(offset: SinkOffset) -> str:
    """The name of an offset's manifest without its ending. Names sort in the order of offsets."""
    return f"{offset.generation:08}-{offset.commit:012}-{offset.rows:012}"


def offset_of(manifest: dict[str, Any]) -> SinkOffset:
    """The offset of the sink after the commit that the manifest describes."""
    return SinkOffset(manifest["generation"], manifest["commit"], manifest["rows"], manifest["last"])


def check_directory(root: Path) -> None:
    """Raises CONNECTOR_OPTION for a directory that can't be written or created."""
    parent = root
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        reason = "Permission denied" if parent.is_dir() else "Not a directory"
        raise error("CONNECTOR_OPTION", f'path "{root}" can\'t be written: {reason}')


def _number(name: str) -> tuple[int, int]:
    """The generation and the number in the name of a writer's directory."""
    generation, _, number = name.removesuffix(".out").partition("-")
    return int(generation), int(number)


def _rank(name: str) -> tuple[int, int]:
    """The rank of a writer, which fences off writers of lower rank."""
    generation, number = _number(name)
    return number, generation


FILE_SPECS: Final = (
    OptionSpec("partition_by", "The columns with a directory for each value.", aliases=("path_partition_by",)),
    OptionSpec("max_row_count", "The most rows of a file.", "integer", minimum=1, unit="rows"),
)

"""The options that determine the set of files."""

_FORMAT_OPTIONS: Final = ("delimiter", "without_header", "null", "compression")
_OP: Final = Field("__op", SMALLINT)
_COMMIT: Final = Field("__commit", BIGINT)
_INSERT, _DELETE, _UPDATE = 1, 2, 3

#: The directory of NULL in Hive's layout.
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _Form:
    """The form of a sink's files. partition_by: columns with a directory for each value. most_rows: the maximum rows of
    a file.
    """

    columns: Schema
    format: FileFormat
    partition_by: tuple[Field, ...]
    most_rows: int | None

    @property
    def written(self) -> Schema:
        """The columns of the files of an upsert sink."""
        return (*self.columns, _OP, _COMMIT)


def _form(delivery: Delivery, known: OptionSet) -> _Form:
    """The form in the options. Raises CONNECTOR_OPTION for invalid options."""
    options, message = known.read(delivery.connector), delivery.format
    if message.rows == "debezium":
        raise error("FEATURE_NOT_SUPPORTED", "FORMAT DEBEZIUM for files", hint="FORMAT PLAIN and UPSERT exist.")
    if message.encoding not in FILE_FORMATS:
        raise error(
            "FEATURE_NOT_SUPPORTED", f"ENCODE {message.encoding.upper()} for files", hint="PARQUET, JSON and CSV exist."
        )
    for name in message.options:
        if name not in _FORMAT_OPTIONS and not name.endswith(".handling.mode"):
            raise error(
                "CONNECTOR_OPTION",
                f'ENCODE {message.encoding.upper()} for files has no option "{name}"',
                hint=did_you_mean(name, _FORMAT_OPTIONS),
            )
    by_name = {c.name: c for c in delivery.columns}
    partition_by = []
    asked = options.text("partition_by")
    for name in (n.strip() for n in asked.split(",") if n.strip()):
        if name not in by_name or by_name[name].type.is_nested:
            raise error(
                "CONNECTOR_OPTION",
                f'partition_by names "{name}", which is no column of plain values',
                hint=did_you_mean(name, by_name),
            )
        partition_by.append(by_name[name])
    if message.rows == "upsert":
        for added in (_OP, _COMMIT):
            if added.name in by_name:
                raise error("DUPLICATE_COLUMN", f'files of an upsert sink have a column "{added.name}" of their own')
    return _Form(
        delivery.columns,
        message.encoding,
        tuple(partition_by),
        options.integer("max_row_count"),
    )


class RowFiles:
    """The files of a delivery. known: all options of its connector. ending: the ending of their names; None: the
    format.

    Raises CONNECTOR_OPTION for invalid options, FEATURE_NOT_SUPPORTED for unsupported formats.
    """

    def __init__(self, delivery: Delivery, known: OptionSet, ending: str | None = None) -> None:
        form = self._form = _form(delivery, known)
        is_upsert = delivery.format.rows == "upsert"
        columns = form.written if is_upsert else form.columns
        self._writer = FileWriter(columns, form.format, delivery.format.options)
        ending = self._writer.extension if ending is None else ending
        self._ending = f".{ending}" if ending else ""
        by_name = {c.name: c for c in delivery.columns}
        self._keys = json_writer(tuple(by_name[n] for n in delivery.key), EXACT_JSON) if is_upsert else None

    def rows(self, batch: SinkBatch) -> pa.Table:
        """The rows of the files in order."""
        names = [c.name for c in self._form.columns]
        if self._keys is None:
            return rows_that_came(batch).select(names)
        rows = batch.rows.select(names)
        changed = changed_keys(self._keys.write(rows), batch.diff)
        is_there = changed.came >= 0
        taken = rows.take(pa.array(np.where(is_there, changed.came, changed.gone)))
        operations = np.where(is_there, np.where(changed.gone >= 0, _UPDATE, _INSERT), _DELETE).astype(np.int16)
        commits = np.full(len(operations), batch.offset.commit, np.int64)
        return taken.append_column(_OP.name, pa.array(operations)).append_column(_COMMIT.name, pa.array(commits))

    def pieces(self, stem: str, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The name and the rows of each file for some rows. Names begin with `stem` after the directory. The same rows
        are always divided in the same way.
        """
        count = 0
        for directory, part in self._partitions(rows):
            size = self._form.most_rows or max(len(part), 1)
            for begin in range(0, len(part), size):
                yield f"{directory}{stem}-{count}{self._ending}", part.slice(begin, size)
                count += 1

    def write(self, file: BinaryIO, rows: pa.Table) -> None:
        """Writes a whole file. Raises OSError."""
        written = self._writer.begin(file)
        written.write(rows)
        written.close()

    def _partitions(self, rows: pa.Table) -> list[tuple[str, pa.Table]]:
        """The rows by directory, in the order of the directories' first occurrence."""
        if not len(rows):
            return []
        if not self._form.partition_by:
            return [("", rows)]
        values = []
        for column in self._form.partition_by:
            texts = evaluate_text([rows.column(column.name)], plain_text("t0", column.type)).dictionary_encode()
            escaped = [quote(v.as_py(), safe=" ") for v in texts.dictionary]
            names = pa.array([f"{quote(column.name, safe=' ')}={v}/" for v in (*escaped, _NULL_PARTITION)])
            values.append(names.take(texts.indices.fill_null(len(escaped))))
        coded = pc.binary_join_element_wise(*values, "").dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        return [
            (name.as_py(), rows.take(pa.array(order[bounds[i] : bounds[i + 1]])))
            for i, name in enumerate(coded.dictionary)
        ]


STATE: Final = ".watersmeet"
"""The directory inside the target's directory for its internal files."""

_PATH: Final = ("path", "posix_fs.root", "fs.path")

SINK_OPTIONS: Final = OptionSet(
    "file of sinks", (OptionSpec("path", "The directory.", aliases=_PATH[1:], is_needed=True), *FILE_SPECS)
)


class DirectoryTarget(Target):
    """A directory with the files or objects of one sink. root: the directory for messages.

    newest: the offset of the newest batch. has_older: whether earlier generations may have left files.
    """

    def __init__(self, delivery: Delivery, database_id: str, files: RowFiles, root: Path | str) -> None:
        self._files, self._shown = files, root
        self._owner = {"database": database_id, "sink": delivery.target_id}
        self._name = delivery.target_id
        self._generation = 0
        self._newest: SinkOffset | None = None
        self._has_older = False

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        wanted = [p for p in batches if is_after(p.offset, self._newest)]
        if wanted:
            with unavailable(self._shown):
                self._deliver(wanted)

    @abc.abstractmethod
    def _deliver(self, batches: Sequence[SinkBatch]) -> None:
        """Like `deliver`, for batches that are not delivered yet."""

    def _owner_file(self) -> bytes:
        return json.dumps(self._owner).encode()

    def _check_owner(self, owner: bytes) -> None:
        """Raises CONNECTOR_OPTION if the directory belongs to another sink."""
        if json.loads(owner) != self._owner:
            raise error(
                "CONNECTOR_OPTION",
                f'path "{self._shown}" belongs to another sink, or to one that was dropped',
                hint=f"Name another directory, or delete this one with its {STATE}.",
            )


class FileTarget(DirectoryTarget):
    """A directory of files as a target."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._root = _root(delivery)
        super().__init__(delivery, database_id, RowFiles(delivery, SINK_OPTIONS), self._root)
        self._state = self._root / STATE
        self._writers = Writers(self._root, self._state)

    def look(self) -> None:
        """Raises CONNECTOR_OPTION for a directory that can't be written."""
        check_directory(self._root)

    def open(self, generation: int) -> SinkOffset | None:
        with unavailable(self._root):
            self._claim_directory()
            self._writers.enter(generation)
            fault("files.entered")
            self._generation = generation
            self._writers.shut_out()
            fault("files.fenced")
            self._finish()
            manifests = self._writers.manifests()
            self._newest = offset_of(self._writers.manifest(manifests[-1])) if manifests else None
            if self._newest is not None and self._newest.generation > generation:
                raise self._writers.fenced()
            self._has_older = bool(manifests) and int(manifests[0][:8]) < generation
            self._remove_generations()
            return self._newest

    def _deliver(self, batches: Sequence[SinkBatch]) -> None:
        own, stem = self._writers.own, stem_of(batches[-1].offset)
        with self._writers.shut_out_as_error():
            staged = self._stage(stem, [self._files.rows(p) for p in batches])
            fault("files.staged")
            manifest = self._writers.commit(batches[-1], {"files": staged})
            self._newest = batches[-1].offset
            self._publish(manifest, own)
            fault("files.published")
            files.discard(own / f"{stem}.manifest")
            self._remove_generations()

    def _claim_directory(self) -> None:
        """CONNECTOR_OPTION if the directory belongs to another sink."""
        self._writers.make_directories()
        owner = self._state / "owner"
        with contextlib.suppress(FileExistsError):
            files.create_file(owner, self._owner_file(), durable=True)
        self._check_owner(files.read_file(owner))

    def _finish(self) -> None:
        """Moves the delivered files of earlier writers to their final names, and deletes the others."""
        for left in self._writers.left():
            for stem in sorted({n.rpartition(".")[0].split("+")[0] for n in files.list_names(left)}):
                name = f"{stem}.manifest"
                if files.exists(self._writers.commits / name):
                    self._publish(self._writers.manifest(name), left)
            fault("files.finished")
            shutil.rmtree(left)

    def _publish(self, manifest: dict[str, Any], staged: Path) -> None:
        """Moves files to their final names. Files that are no longer in `staged` were moved before."""
        touched = set()
        for i, file in enumerate(manifest["files"]):
            path = self._root / file["name"]
            source = staged / file["staged"]
            if not source.exists():
                if not staged.exists():
                    raise Unavailable(f"{staged} was removed")
                continue
            files.make_directory(path.parent)
            os.rename(source, path)
            touched |= {path.parent, *path.parent.relative_to(self._root).parents}
            if i == 0:
                fault("files.first published")
        for directory in touched:
            files.sync_directory(self._root / directory)

    def _remove_generations(self) -> None:
        """Deletes the files of earlier generations, because the newest one begins with the whole content."""
        if self._newest is None or self._newest.generation < self._generation or not self._has_older:
            return
        for name in self._writers.manifests():
            if int(name[:8]) >= self._generation:
                break
            files.remove_files(self._root / f["name"] for f in self._writers.manifest(name)["files"])
            files.discard(self._writers.commits / name)
            fault("files.removed")
        self._has_older = False

    def _stage(self, stem: str, tables: list[pa.Table]) -> list[dict[str, Any]]:
        """Writes the rows to the writer's directory. Returns the files with their final names."""
        own = self._writers.own
        staged: list[dict[str, Any]] = []
        for final, piece in self._files.pieces(f"{self._name}-{stem}", pa.concat_tables(tables)):
            name = f"{stem}+{len(staged)}.staged"
            files.discard(own / name)
            with (own / name).open("xb") as out:
                self._files.write(out, piece)
            files.sync_file(own / name)
            staged.append({"name": final, "staged": name, "rows": len(piece)})
        files.sync_directory(own)
        return staged


def _root(delivery: Delivery) -> Path:
    """The directory of a delivery. Raises CONNECTOR_OPTION."""
    path = next((delivery.connector[name] for name in _PATH if delivery.connector.get(name)), None)
    if path is None:
        raise error("CONNECTOR_OPTION", "connector file needs the option path", hint="Add path = '<directory>'.")
    return Path(os.path.abspath(os.path.expanduser(path)))


CONNECTOR: Final = connector_for(FileTarget, SINK_OPTIONS)
