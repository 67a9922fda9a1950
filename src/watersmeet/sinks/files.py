"""The target `file`: a directory of Parquet, JSON or CSV files, each of which is there whole, once, or not at all.

    orders/
        day=2024-05-01/s12-00000001-000000000017-000000000250-0.parquet
        .watersmeet/owner                   which sink the directory belongs to
        .watersmeet/writers/00000001-00000003/   where the newest writer prepares files
        .watersmeet/commits/00000001-000000000017-000000.manifest

Rows are prepared in the writer's own directory. Then the manifest is created: that is the step in which they are
delivered. Only then the files are moved to their names. Whoever opens the target next moves what was left behind.

`sinks.filewriters` shuts out earlier writers.

RisingWave, "Sink to file systems": append-only. An upsert sink has two columns more: `__op`, 1 for a row that was
inserted, 2 for one that was deleted, 3 for one that replaces another, as RisingWave's changelogs have it, and
`__commit`, which rises.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet import files
from watersmeet.errors import did_you_mean, error
from watersmeet.faults import fault
from watersmeet.formats.encoders import changed_keys
from watersmeet.formats.valuetexts import EXACT_JSON, plain_text
from watersmeet.formats.writers import evaluate_text, json_writer
from watersmeet.formats.writingfiles import FILE_FORMATS, FileFormat, FileWriter
from watersmeet.sinks.base import Delivery, Place, Portion, Target, Unavailable
from watersmeet.sinks.filewriters import (
    Writers,
    check_directory,
    flush,
    is_after,
    place_of,
    rows_that_came,
    stem_of,
    unavailable,
)
from watersmeet.sinks.targets import Connector, check_options
from watersmeet.types import BIGINT, SMALLINT, Field, Schema

_STATE: Final = ".watersmeet"
_PATH: Final = ("path", "posix_fs.root", "fs.path")
_OPTIONS: Final = (*_PATH, "partition_by", "path_partition_by", "max_row_count")
_FORMAT_OPTIONS: Final = ("delimiter", "without_header", "null", "compression")
_OP: Final = Field("__op", SMALLINT)
_COMMIT: Final = Field("__commit", BIGINT)
_INSERT, _DELETE, _UPDATE = 1, 2, 3
#: What Hive, and all that read its directories, call the directory of NULL.
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _Form:
    """How a sink writes. partition_by: columns with a directory for each value. most_rows: of a file."""

    root: Path
    columns: Schema
    format: FileFormat
    partition_by: tuple[Field, ...]
    most_rows: int | None

    @property
    def written(self) -> Schema:
        """The columns of the files of an upsert sink."""
        return (*self.columns, _OP, _COMMIT)


def _form(delivery: Delivery) -> _Form:
    """CONNECTOR_OPTION for options that are wrong."""
    check_options(delivery, _OPTIONS)
    options, message = delivery.connector, delivery.format
    path = next((options[name] for name in _PATH if options.get(name)), None)
    if path is None:
        raise error("CONNECTOR_OPTION", "connector file needs the option path", hint="Add path = '<directory>'.")
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
    asked = options.get("partition_by") or options.get("path_partition_by") or ""
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
    most = options.get("max_row_count")
    if most is not None and not (most.isdecimal() and int(most)):
        raise error("CONNECTOR_OPTION", f"max_row_count has to be a positive number, not '{most}'")
    return _Form(
        Path(os.path.abspath(os.path.expanduser(path))),
        delivery.columns,
        message.encoding,
        tuple(partition_by),
        int(most) if most else None,
    )


class FileTarget:
    """See `base.Target`."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        form = self._form = _form(delivery)
        self._is_upsert = delivery.format.rows == "upsert"
        columns = form.written if self._is_upsert else form.columns
        self._writer = FileWriter(columns, form.format, delivery.format.options)
        by_name = {c.name: c for c in delivery.columns}
        self._keys = json_writer(tuple(by_name[n] for n in delivery.key), EXACT_JSON) if self._is_upsert else None
        self._owner = {"database": database_id, "sink": delivery.target_id}
        self._name = delivery.target_id
        self._state = form.root / _STATE
        self._writers = Writers(form.root, self._state)
        self._generation = 0
        self._newest: Place | None = None
        self._has_older = False

    def open(self, generation: int) -> Place | None:
        with unavailable():
            self._claim_directory()
            self._writers.enter(generation)
            fault("files.entered")
            self._generation = generation
            self._writers.shut_out()
            fault("files.fenced")
            self._finish()
            manifests = self._writers.manifests()
            self._newest = place_of(self._writers.manifest(manifests[-1])) if manifests else None
            if self._newest is not None and self._newest.generation > generation:
                raise self._writers.fenced()
            self._has_older = bool(manifests) and int(manifests[0][:8]) < generation
            self._remove_generations()
            return self._newest

    def deliver(self, portions: Sequence[Portion]) -> None:
        wanted = [p for p in portions if is_after(p.place, self._newest)]
        if not wanted:
            return
        own = self._writers.own
        with unavailable(), self._writers.shut_out_as_error():
            staged = self._stage(stem_of(wanted[-1].place), [self._rows(p) for p in wanted])
            fault("files.staged")
            manifest = self._writers.commit(wanted[-1], {"files": staged})
            self._newest = wanted[-1].place
            self._publish(manifest, own)
            fault("files.published")
            files.discard(own / f"{stem_of(wanted[-1].place)}.manifest")
            self._remove_generations()

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _claim_directory(self) -> None:
        """CONNECTOR_OPTION if the directory belongs to another sink."""
        self._writers.make_directories()
        owner = self._state / "owner"
        with contextlib.suppress(FileExistsError):
            files.create_file(owner, json.dumps(self._owner).encode(), durable=True)
        if json.loads(files.read_file(owner)) != self._owner:
            raise error(
                "CONNECTOR_OPTION",
                f'path "{self._form.root}" belongs to another sink, or to one that was dropped',
                hint=f"Name another directory, or delete this one with its {_STATE}.",
            )

    def _finish(self) -> None:
        """Moves the files of earlier writers that are delivered to their names, and removes the others."""
        for left in self._writers.left():
            for stem in sorted({n.rpartition(".")[0].split("+")[0] for n in files.list_names(left)}):
                name = f"{stem}.manifest"
                if files.exists(self._writers.commits / name):
                    self._publish(self._writers.manifest(name), left)
            fault("files.finished")
            shutil.rmtree(left)

    def _publish(self, manifest: dict[str, Any], staged: Path) -> None:
        """Moves files to their names. Those that are no longer in `staged` have been moved before."""
        touched = set()
        for i, file in enumerate(manifest["files"]):
            path = self._form.root / file["name"]
            source = staged / file["staged"]
            if not source.exists():
                if not staged.exists():
                    raise Unavailable(f"{staged} was removed")
                continue
            files.make_directory(path.parent)
            os.rename(source, path)
            touched |= {path.parent, *path.parent.relative_to(self._form.root).parents}
            if i == 0:
                fault("files.first published")
        for directory in touched:
            files.sync_directory(self._form.root / directory)

    def _remove_generations(self) -> None:
        """Removes what generations before the newest one have delivered: it begins with the whole content."""
        if self._newest is None or self._newest.generation < self._generation or not self._has_older:
            return
        for name in self._writers.manifests():
            if int(name[:8]) >= self._generation:
                break
            files.remove_files(self._form.root / f["name"] for f in self._writers.manifest(name)["files"])
            files.discard(self._writers.commits / name)
            fault("files.removed")
        self._has_older = False

    def _rows(self, portion: Portion) -> pa.Table:
        """The rows of the files, in their order."""
        names = [c.name for c in self._form.columns]
        if self._keys is None:
            return rows_that_came(portion).select(names)
        rows = portion.rows.select(names)
        changed = changed_keys(self._keys.write(rows), portion.diff)
        is_there = changed.came >= 0
        taken = rows.take(pa.array(np.where(is_there, changed.came, changed.gone)))
        operations = np.where(is_there, np.where(changed.gone >= 0, _UPDATE, _INSERT), _DELETE).astype(np.int16)
        commits = np.full(len(operations), portion.place.commit, np.int64)
        return taken.append_column(_OP.name, pa.array(operations)).append_column(_COMMIT.name, pa.array(commits))

    def _stage(self, stem: str, tables: list[pa.Table]) -> list[dict[str, Any]]:
        """Writes the rows in the writer's directory; the files with their names."""
        own = self._writers.own
        staged: list[dict[str, Any]] = []
        rows = pa.concat_tables(tables)
        for directory, part in self._partitions(rows):
            size = self._form.most_rows or max(len(part), 1)
            for begin in range(0, len(part), size):
                piece = part.slice(begin, size)
                name = f"{stem}+{len(staged)}.staged"
                files.discard(own / name)
                file = self._writer.open(own / name)
                file.write(piece)
                file.close()
                flush(own / name)
                final = f"{directory}{self._name}-{stem}-{len(staged)}.{self._writer.extension}"
                staged.append({"name": final, "staged": name, "rows": len(piece)})
        files.sync_directory(own)
        return staged

    def _partitions(self, rows: pa.Table) -> list[tuple[str, pa.Table]]:
        """By directory, in the order in which they first occur."""
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


def _check(delivery: Delivery) -> None:
    FileTarget(delivery, "")
    check_directory(_form(delivery).root)


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:
    del stopping
    return FileTarget(delivery, database_id)


CONNECTOR: Final = Connector(_check, _open)
