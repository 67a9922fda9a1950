"""Reads the present content of Iceberg tables for external tables, with the settings that locate them.

Timeplus, "Iceberg External Stream".

The catalog contains the id of the newest snapshot. Each snapshot contains the id of its parent, and its manifests list
the data files that it added and removed. Columns are matched by their ids. Source: Iceberg's table specification,
"Snapshots", "Manifests", "Column Projection", "Sequence Numbers".
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from watersmeet.catalog import External
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Condition, Reader
from watersmeet.connectors.lakes.client import (
    IcebergLocation,
    LakeOptions,
    iceberg_catalog,
    iceberg_explained,
    iceberg_library,
    iceberg_location,
)
from watersmeet.connectors.lakes.versions import LakeProblem, Mark, Step, made_anew
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.typemapping import can_read, columns_of, retyped, sql_type
from watersmeet.objectstores.base import is_local
from watersmeet.values.slices import LakeFile
from watersmeet.values.types import Schema, arrow_schema

#: The kind of Iceberg tables, and of databases of them.
ICEBERG: Final = "iceberg"

#: The library's names of comparisons.
_TESTS: Final = {
    "=": "EqualTo",
    "<>": "NotEqualTo",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
    "IN": "In",
    "IS NULL": "IsNull",
    "IS NOT NULL": "NotNull",
}

_COMPARED: Final = ("integer", "bigint", "varchar", "date", "timestamp", "numeric")


class IcebergReader(Reader):
    """The rows of the newest snapshot."""

    takes_pushdown = True

    def __init__(self, external: External) -> None:
        self._options = external.options
        self._location = iceberg_location(external.options)

    def columns(self) -> Schema | None:
        return columns_of(self._location.what, self._table().schema().as_arrow())

    def version(self) -> Any:
        table = self._table()
        snapshot = table.current_snapshot()
        return str(table.metadata.table_uuid), snapshot and snapshot.snapshot_id, table.schema().schema_id

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        table, what = self._table(), self._location.what
        there = table.schema().as_arrow()
        for column in columns:
            if column.name not in there.names:
                refuse(f'{what} has no column "{column.name}"', hint=did_you_mean(column.name, there.names))
            kind = there.field(column.name).type
            if not can_read(kind, column.type):
                raise error(
                    "DATATYPE_MISMATCH", f'column "{column.name}" of {what} is {kind}, declared as {column.type.sql}'
                )
        with self._explained():
            tested = [_tested(c) for c in conditions if _is_tested(c, there)]
            rows = functools.reduce(operator.and_, tested) if tested else iceberg_library(_EXPRESSIONS).AlwaysTrue()
            scan = table.scan(row_filter=rows, selected_fields=tuple(c.name for c in columns))
            self._check_files(scan)
            found = scan.to_arrow()
        done = []
        for column in columns:
            values = retyped(found.column(column.name).combine_chunks(), column.type)
            if values.bad is not None and values.bad.any():
                raise error("INVALID_VALUE", f'a value of column "{column.name}" of {what} is not {column.type.sql}')
            done.append(values.column)
        return pa.Table.from_arrays(done, schema=arrow_schema(columns, positional=False))

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:
        """The columns, and the conditions that the table's statistics can test."""
        there = self._table().schema().as_arrow()
        tested = [str(_tested(c)) for c in conditions if _is_tested(c, there)]
        where = f" where {' and '.join(tested)}" if tested else ""
        return f"columns {', '.join(c.name for c in columns)}{where}"

    def written(self) -> dict[str, str]:
        """See `iceberg.target`."""
        return dict(self._options)

    def _table(self) -> Any:
        """The present table. Raises UNDEFINED_OBJECT."""
        exceptions = iceberg_library("pyiceberg.exceptions")
        with self._explained():
            try:
                table = iceberg_catalog(self._location).load_table(self._location.table)
            except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError) as cause:
                raise error("UNDEFINED_OBJECT", f"there is no {self._location.what}") from cause
        self._check_file(table.metadata_location)
        return table

    def _check_files(self, scan: Any) -> None:
        for task in scan.plan_files():
            for file in (task.file, *task.delete_files):
                self._check_file(file.file_path)

    def _check_file(self, path: str) -> None:
        if is_local(path) and not is_local(self._options["warehouse.path"]):
            refuse(f"file {path} of {self._location.what} is of this machine, and the table is in a store")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with iceberg_explained(self._location, lambda text: error("RUNTIME_UNAVAILABLE", text)):
            yield


_EXPRESSIONS: Final = "pyiceberg.expressions"


def _is_tested(condition: Condition, there: pa.Schema) -> bool:
    """Whether the library keeps all rows that satisfy the condition in Watersmeet."""
    column = condition.column
    if column.name not in there.names:
        return False
    kind = sql_type(there.field(column.name).type)
    if not condition.values:
        return kind is not None
    return kind == column.type and column.type.name in _COMPARED


def _tested(condition: Condition) -> Any:
    test = getattr(iceberg_library(_EXPRESSIONS), _TESTS[condition.operator])
    scale = condition.column.type.scale
    digits = Decimal(1).scaleb(-scale) if condition.column.type.name == "numeric" and scale is not None else None
    values = [v.quantize(digits) if digits is not None and isinstance(v, Decimal) else v for v in condition.values]
    if condition.operator == "IN":
        return test(condition.column.name, values)
    return test(condition.column.name, *values)


TABLE_OPTIONS: Final = OptionSet(
    "iceberg of external tables",
    (
        OptionSpec("catalog_type", "The type of the catalog.", "choice", among=("rest", "sql", "jdbc"), default="rest"),
        OptionSpec("catalog_name", "The name of the catalog."),
        OptionSpec("catalog_uri", "The URL of the catalog.", is_needed=True),
        OptionSpec("catalog_credential", "The credential of a REST catalog, as `id:secret`.", secret=True),
        OptionSpec("catalog_token", "The token of a REST catalog.", secret=True),
        OptionSpec(
            "credential", "The credential of catalog and store, where they have none of their own.", secret=True
        ),
        OptionSpec("warehouse", "The directory or URL of the warehouse.", is_needed=True),
        OptionSpec("namespace", "The namespace of the table."),
        OptionSpec("table", "The table."),
        OptionSpec("storage_endpoint", "The URL of the store."),
        OptionSpec("storage_region", "The region of the store."),
        OptionSpec("storage_credential", "The credential of the store, as `key:secret`.", secret=True),
        OptionSpec("rest_catalog_sigv4_enabled", "Whether requests are signed by AWS's method.", "flag"),
        OptionSpec("rest_catalog_signing_region", "The region of the signature."),
        OptionSpec("rest_catalog_signing_name", "The service of the signature."),
        OptionSpec(
            "use_environment_credentials",
            "Accepted without effect: credentials of the environment are used unless others are given.",
            "flag",
            is_idle=True,
        ),
    ),
)


def iceberg_options(given: Mapping[str, str], namespace: str, table: str) -> dict[str, str]:
    """Converts settings of Timeplus to options of the connector iceberg. Raises CONNECTOR_OPTION,
    FEATURE_NOT_SUPPORTED.

    namespace, table: the defaults if the settings have none.
    """
    options = TABLE_OPTIONS.read(given)
    options.check()
    kind = options.choice("catalog_type")
    both = options.text("credential")
    found = {
        "connector": ICEBERG,
        "catalog.type": kind,
        "catalog.name": options.text("catalog_name"),
        "catalog.uri": options.text("catalog_uri"),
        "catalog.credential": options.text("catalog_credential") or ("" if kind != "rest" else both),
        "catalog.token": options.text("catalog_token"),
        "warehouse.path": options.text("warehouse"),
        "database.name": options.text("namespace") or namespace,
        "table.name": options.text("table") or table,
        **_store(options, both),
    }
    if options.flag("rest_catalog_sigv4_enabled"):
        found |= {
            "catalog.rest.sigv4_enabled": "true",
            "catalog.rest.signing_region": options.text("rest_catalog_signing_region"),
            "catalog.rest.signing_name": options.text("rest_catalog_signing_name"),
        }
    for name, setting in (("catalog.uri", "catalog_uri"), ("warehouse.path", "warehouse")):
        if not found[name]:
            refuse(f'what is of type iceberg needs the setting "{setting}"', hint=f"Write {setting} = '…'.")
    return {name: value for name, value in found.items() if value}


def _store(options: Options, both: str) -> dict[str, str]:
    """The library's properties for access to the store of the data files."""
    endpoint = options.text("storage_endpoint")
    credential = options.text("storage_credential") or both
    found: dict[str, str] = {"s3.region": options.text("storage_region")}
    if endpoint and (urlsplit(endpoint).hostname or "").endswith(".amazonaws.com"):
        endpoint = ""  # the table's paths contain the bucket, and the service is known
    found["s3.endpoint"] = endpoint
    if credential:
        key, colon, secret = credential.partition(":")
        if not colon:
            refuse("a credential of a store is written 'key:secret'")
        found |= {"s3.access.key": key, "s3.secret.key": secret}
    return found


def iceberg_tables(given: Mapping[str, str], namespace: str) -> list[str]:
    """The names of all tables of a namespace; empty for an unknown namespace.

    Raises CONNECTOR_OPTION, RUNTIME_UNAVAILABLE.
    """
    location = iceberg_location(iceberg_options(given, namespace, "any"))
    exceptions = iceberg_library("pyiceberg.exceptions")
    whole = IcebergLocation(location.catalog, location.properties, (location.table[0], "*"))
    with iceberg_explained(whole, lambda text: error("RUNTIME_UNAVAILABLE", text)):
        try:
            return sorted(name[-1] for name in iceberg_catalog(location).list_tables(location.table[0]))
        except exceptions.NoSuchNamespaceError:
            return []


#: The property with the names of columns in files without field ids.
_NAMES: Final = "schema.name-mapping.default"

#: The types whose partition values have the same texts in Iceberg and in SQL.
_TEXTS: Final = ("boolean", "int", "long", "date", "timestamp", "timestamptz", "string", "decimal")

_DELETES: Final = "it marks rows as deleted by delete files, which are not supported"


class IcebergLog:
    """The log of a table; see `versions.LakeLog`. Versions are ids of snapshots; 0 means that the table has no
    snapshot.
    """

    def __init__(self, connector: Mapping[str, str], options: LakeOptions, columns: Schema) -> None:
        self._location = iceberg_location(connector)
        self._options = options
        ids = dict(options.ids)
        self._names = {c.name for c in columns}
        self._ids = {name: ids[name] for name in self._names if name in ids}
        self._exceptions = iceberg_library("pyiceberg.exceptions")
        self._manifest = iceberg_library("pyiceberg.manifest")
        self._catalog: Any = None

    @property
    def what(self) -> str:
        return self._location.what

    def named(self, version: int) -> str:
        return f"snapshot {version}"

    def ids(self) -> dict[str, int]:
        with self._explained():
            return {field.name: field.field_id for field in self._open().schema().fields}

    def schema(self) -> pa.Schema:
        with self._explained():
            table = self._open()
            current = table.schema()
            # the ids of read snapshots identify all later changes
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
        """The snapshots after a read one, oldest first. number: the sequence number of the read one, if known.

        A snapshot without a parent follows the read one if its number is the next, because catalogs may forget expired
        parents.
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
        """The changes of a snapshot."""
        status, content = self._manifest.ManifestEntryStatus, self._manifest.DataFileContent
        number = snapshot.snapshot_id
        self._check_file(snapshot.manifest_list)
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
        """The present table. Raises UNDEFINED_OBJECT."""
        if self._catalog is None:
            self._catalog = iceberg_catalog(self._location)
        try:
            table = self._catalog.load_table(self._location.table)
        except (self._exceptions.NoSuchTableError, self._exceptions.NoSuchNamespaceError) as cause:
            raise error("UNDEFINED_OBJECT", f"there is no {self.what}", hint="Create it first.") from cause
        self._check_file(table.metadata_location)
        return table

    def _check_file(self, path: str) -> None:
        """Raises LakeProblem for a local file if the table is in an object store."""
        if not self._options.root and is_local(path):
            raise LakeProblem(f"file {path} is of this machine, and the table is in a store", passes=False)

    def _has_deletes(self, table: Any, snapshot: Any) -> bool:
        data = self._manifest.ManifestContent.DATA
        return any(
            m.content != data and (m.added_files_count or m.existing_files_count) for m in snapshot.manifests(table.io)
        )

    def _lacking(self, table: Any, schema: Any) -> str | None:
        """The feature that makes the table unreadable with the columns of `schema`, or None."""
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
        """A data file with its partition's values of the columns that are read."""
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
        """Converts errors of the library to LakeProblem and CONNECTOR_OPTION."""
        with iceberg_explained(self._location, lambda text: LakeProblem(text, passes=True), LakeProblem):
            yield


def _print(table: Any, number: int | None) -> str:
    """The table's identity, and the sequence number of a snapshot, which is empty if the table has no snapshot."""
    counted = "" if table.metadata.format_version == 1 or number is None else number
    return f"{table.metadata.table_uuid}/{counted}"


def _mark(table: Any, snapshot: Any) -> Mark:
    return Mark(snapshot.snapshot_id, _print(table, snapshot.sequence_number))


def _schema_of(table: Any, snapshot: Any) -> Any:
    """The columns at the time of a snapshot."""
    return table.schemas().get(snapshot.schema_id, table.schema())


def _shape(kind: Any) -> Any:
    """The fields inside a type with ids and names."""
    names = ("element_field", "key_field", "value_field")
    parts = kind.fields if kind.is_struct else [getattr(kind, name) for name in names if hasattr(kind, name)]
    return tuple((part.field_id, part.name, _shape(part.field_type)) for part in parts)
