"""The snapshots of a table of Apache Iceberg, by its catalog.

The catalog says which snapshot is the newest one; each names its parent, and has manifests, which say what it did with
data files. Columns are known by their ids. Source: Iceberg's table specification, "Snapshots", "Manifests", "Column
Projection", "Sequence Numbers".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from watersmeet.connectors.lakes.client import iceberg_catalog, iceberg_explained, iceberg_library, iceberg_place
from watersmeet.connectors.lakes.options import LakeOptions
from watersmeet.connectors.lakes.versions import LakeProblem, Mark, Step, made_anew
from watersmeet.errors import error
from watersmeet.objectstores.base import is_local
from watersmeet.values.slices import LakeFile
from watersmeet.values.types import Schema

#: A property with names for files without field ids.
_NAMES: Final = "schema.name-mapping.default"
#: Types of which values of partitions are texts that mean the same here.
_TEXTS: Final = ("boolean", "int", "long", "date", "timestamp", "timestamptz", "string", "decimal")
_DELETES: Final = "it marks rows as deleted by delete files, which are not supported"


class IcebergLog:
    """See `versions.LakeLog`. Versions are ids of snapshots; 0 is that of a table without one."""

    def __init__(self, connector: Mapping[str, str], options: LakeOptions, columns: Schema) -> None:
        self._place = iceberg_place(connector)
        self._options = options
        ids = dict(options.ids)
        self._names = {c.name for c in columns}
        self._ids = {name: ids[name] for name in self._names if name in ids}
        self._exceptions = iceberg_library("pyiceberg.exceptions")
        self._manifest = iceberg_library("pyiceberg.manifest")
        self._catalog: Any = None

    @property
    def what(self) -> str:
        return self._place.what

    def named(self, version: int) -> str:
        return f"snapshot {version}"

    def ids(self) -> dict[str, int]:
        with self._explained():
            return {field.name: field.field_id for field in self._open().schema().fields}

    def schema(self) -> pa.Schema:
        with self._explained():
            table = self._open()
            current = table.schema()
            # What came later is said by the snapshots that are read.
            first = self._options.snapshot and not self._options.ids
            snapshot = table.current_snapshot() if first else None
            problem = self._lacking(table, current)
            if problem is None and snapshot is not None and self._has_deletes(table, snapshot):
                problem = _DELETES
            if problem is not None:
                raise error("FEATURE_NOT_SUPPORTED", f"{self.what} can't be read: {problem}")
            known = {number: name for name, number in self._options.ids}
            names = [known.get(field.field_id, field.name) for field in current.fields]
            kept = [i for i, f in enumerate(current.fields) if f.field_id in known or f.name not in known.values()]
            arrow = current.as_arrow()
            return pa.schema([arrow.field(i).with_name(names[i]) for i in kept])

    def newest(self) -> int:
        with self._explained():
            snapshot = self._open().current_snapshot()
            return 0 if snapshot is None else int(snapshot.snapshot_id)

    def snapshot(self, version: int | None) -> Step:
        with self._explained():
            table = self._open()
            snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
            if snapshot is None:
                if version:
                    raise self._expired(version)
                return Step(Mark(0, _print(table, table.metadata.last_sequence_number)))
            schema = _schema_of(table, snapshot)
            tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
            problem = self._lacking(table, schema) or self._unreadable(t.file for t in tasks)
            if any(task.delete_files for task in tasks):
                problem = problem or _DELETES
            files = tuple(sorted((self._file(table, schema, task.file) for task in tasks), key=lambda file: file.path))
            return Step(_mark(table, snapshot), files, problem=problem)

    def after(self, mark: Mark, most: int) -> list[Step]:
        with self._explained():
            table = self._open()
            identity, _, number = mark.print.partition("/")
            if identity and identity != str(table.metadata.table_uuid):
                raise made_anew(self, mark.version)
            return [self._step(table, snapshot) for snapshot in self._chain(table, mark.version, number)[:most]]

    def _chain(self, table: Any, version: int, number: str) -> list[Any]:
        """The snapshots behind one that was read, the oldest first. number: its sequence number, if known.

        A snapshot without a parent follows that one if its number is the next: catalogs may forget parents that have
        expired.
        """
        known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        snapshot = table.current_snapshot()
        found: list[Any] = []
        while snapshot is not None and snapshot.snapshot_id != version:
            found.append(snapshot)
            if snapshot.parent_snapshot_id == version:
                break
            snapshot = known.get(snapshot.parent_snapshot_id)
        else:
            if snapshot is not None or (version == 0 and not found):
                return found[::-1]
            if version in known:
                raise LakeProblem(
                    f"{self.what} was set to another state: {self.named(version)} is no longer part of its history",
                    passes=False,
                )
            if number and found and found[-1].sequence_number == int(number) + 1:
                return found[::-1]
            if version or number:
                raise self._expired(version)
        return found[::-1]

    def _expired(self, version: int) -> LakeProblem:
        since = self.named(version) if version else "its beginning"
        return LakeProblem(f"snapshots of {self.what} since {since} have expired", passes=False)

    def _step(self, table: Any, snapshot: Any) -> Step:
        """What a snapshot did."""
        status, content = self._manifest.ManifestEntryStatus, self._manifest.DataFileContent
        number = snapshot.snapshot_id
        self._check_place(snapshot.manifest_list)
        entries = [
            entry
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == number
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            if entry.snapshot_id == number
        ]
        data = [e for e in entries if e.data_file.content == content.DATA]
        came = [e.data_file for e in data if e.status == status.ADDED]
        removed = tuple(sorted(e.data_file.file_path for e in data if e.status == status.DELETED))
        schema = _schema_of(table, snapshot)
        added = tuple(sorted((self._file(table, schema, file) for file in came), key=lambda file: file.path))
        problem = self._lacking(table, schema) or self._unreadable(came)
        if snapshot.summary is not None and snapshot.summary.operation.value == "replace":
            return Step(_mark(table, snapshot), left=removed, came=added, problem=problem)
        marks = any(e.data_file.content != content.DATA and e.status == status.ADDED for e in entries)
        return Step(
            _mark(table, snapshot),
            added,
            removed,
            is_change=bool(removed) or marks,
            problem=problem or (_DELETES if marks else None),
        )

    def _open(self) -> Any:
        """The table as it is now. UNDEFINED_OBJECT."""
        if self._catalog is None:
            self._catalog = iceberg_catalog(self._place)
        try:
            table = self._catalog.load_table(self._place.table)
        except (self._exceptions.NoSuchTableError, self._exceptions.NoSuchNamespaceError) as cause:
            raise error("UNDEFINED_OBJECT", f"there is no {self.what}", hint="Create it first.") from cause
        self._check_place(table.metadata_location)
        return table

    def _check_place(self, path: str) -> None:
        """LakeProblem for a file of this machine where the table is in a store."""
        if not self._options.root and is_local(path):
            raise LakeProblem(f"file {path} is of this machine, and the table is in a store", passes=False)

    def _has_deletes(self, table: Any, snapshot: Any) -> bool:
        data = self._manifest.ManifestContent.DATA
        return any(
            m.content != data and (m.added_files_count or m.existing_files_count) for m in snapshot.manifests(table.io)
        )

    def _lacking(self, table: Any, schema: Any) -> str | None:
        """What the table has that can't be read, with columns as in `schema`."""
        if _NAMES in table.properties:
            return f"files without field ids ({_NAMES}) are not supported"
        wanted = self._ids or {f.name: f.field_id for f in schema.fields if f.name in self._names or not self._names}
        fields = {field.field_id: field for field in schema.fields}
        for name, number in wanted.items():
            if number not in fields:
                return f'column "{name}" is no longer there'
            if fields[number].initial_default is not None:
                return f'column "{name}" has an initial default, which is not supported'
            same = [f for s in table.schemas().values() for f in s.fields if f.field_id == number]
            if len({_shape(f.field_type) for f in same}) > 1:
                return f'fields within column "{name}" have been changed, which is not supported'
        return None

    def _unreadable(self, files: Iterable[Any]) -> str | None:
        for file in files:
            if file.file_format != self._manifest.FileFormat.PARQUET:
                return f"data files of format {file.file_format.value} are not supported"
            if file.key_metadata is not None:
                return "data files that are encrypted are not supported"
        return None

    def _file(self, table: Any, schema: Any, file: Any) -> LakeFile:
        """A data file, with the values of its partition in columns that are read."""
        known = {number: name for name, number in self._ids.items()}
        kinds = {f.field_id: f.field_type for f in schema.fields}
        values = {}
        for place, field in enumerate(table.specs()[file.spec_id].fields):
            kind, value = kinds.get(field.source_id), file.partition[place]
            if kind is None or field.source_id not in known or str(field.transform) != "identity":
                continue
            if str(kind).partition("(")[0] in _TEXTS:
                values[known[field.source_id]] = None if value is None else field.transform.to_human_string(kind, value)
        return LakeFile(file.file_path, file.file_size_in_bytes, tuple(sorted(values.items())))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the library as LakeProblem, CONNECTOR_OPTION."""
        with iceberg_explained(self._place, lambda text: LakeProblem(text, passes=True), LakeProblem):
            yield


def _print(table: Any, number: int | None) -> str:
    """Of a snapshot: which table it is of, and its sequence number; empty where the table has none."""
    counted = "" if table.metadata.format_version == 1 or number is None else number
    return f"{table.metadata.table_uuid}/{counted}"


def _mark(table: Any, snapshot: Any) -> Mark:
    return Mark(snapshot.snapshot_id, _print(table, snapshot.sequence_number))


def _schema_of(table: Any, snapshot: Any) -> Any:
    """The columns when a snapshot was made."""
    return table.schemas().get(snapshot.schema_id, table.schema())


def _shape(kind: Any) -> Any:
    """What is within a type, by ids and names."""
    names = ("element_field", "key_field", "value_field")
    parts = kind.fields if kind.is_struct else [getattr(kind, name) for name in names if hasattr(kind, name)]
    return tuple((part.field_id, part.name, _shape(part.field_type)) for part in parts)
