"""Delta Lake: tables as targets, and the reader of a table's log.

The offset of a sink and the number of its writer are transactions of an application (Delta's protocol, "Transaction
Identifiers"). RisingWave, "Sink data to Delta Lake". Upserts, a merge by the key, are an extension.

The library lists the content of a version. The commit of a version, a file of JSON lines, contains its changes ("Delta
Transaction Log Protocol": actions, partition values and reader features).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkOffset, check_form, connector_for
from watersmeet.connectors.lakes.client import (
    DELTA_OPTIONS,
    DELTA_SOURCE,
    LakeOptions,
    delta_library,
    delta_location,
    delta_problem,
    delta_storage,
    first_line,
)
from watersmeet.connectors.lakes.source import lake_connector
from watersmeet.connectors.lakes.targets import TARGET_OPTIONS, LakeTarget, check_partition_name
from watersmeet.connectors.lakes.versions import LakeProblem, Mark, Step, column_problem, made_anew
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import StoreProblem
from watersmeet.objectstores.stores import open_store
from watersmeet.values.slices import LakeFile
from watersmeet.values.types import Schema, SqlType

_GONE: Final = "__watersmeet_gone"
SINK_OPTIONS: Final = OptionSet("deltalake of sinks", (*DELTA_OPTIONS, *TARGET_OPTIONS))


@dataclass(frozen=True)
class _Options:
    """The options of a table. location: a directory or a URL. storage: the library's storage options."""

    location: str
    storage: dict[str, str]
    partition_by: tuple[str, ...]
    creates: bool


class DeltaTarget(LakeTarget):
    """A Delta Lake table as a target."""

    system = "delta"
    as_text = ("time", "interval")

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._options = _options(delivery)
        self._library = delta_library()
        self._exceptions = delta_library("deltalake.exceptions")
        super().__init__(delivery, f'Delta table "{self._options.location}"', self._exceptions.CommitFailedError)
        self._application = f"watersmeet-{database_id}-{delivery.target_id}"
        self._partition_columns: list[str] = []

    def _open_table(self) -> Any:
        options = self._options
        try:
            table = self._library.DeltaTable(options.location, storage_options=options.storage)
        except self._exceptions.TableNotFoundError as cause:
            if not options.creates:
                raise self._missing() from cause
            self._columns.check_partitions(self._what, options.partition_by, _is_partition_type)
            table = self._library.DeltaTable.create(
                options.location,
                self._columns.schema,
                mode="ignore",
                partition_by=list(options.partition_by) or None,
                storage_options=options.storage,
            )
        self._columns.check(self._what, pa.schema(table.schema().to_arrow()))
        self._partition_columns = [n for n in table.metadata().partition_columns if n in self._names]
        self._columns.check_partitions(self._what, self._partition_columns, _is_partition_type)
        return table

    def _noted(self) -> tuple[SinkOffset | None, int]:
        generation, commit, rows, writer = (
            self._table.transaction_version(f"{self._application}-{part}")
            for part in ("generation", "commit", "rows", "writer")
        )
        offset = None if generation is None else SinkOffset(generation, commit, rows >> 1, bool(rows & 1))
        return offset, writer or 0

    def _properties(self, offset: SinkOffset | None) -> Any:
        """The transactions of a version. The library must not retry a commit, because the offset may have changed."""
        numbers = {"writer": self._writer}
        if offset is not None:
            numbers |= {"generation": offset.generation, "commit": offset.commit}
            numbers["rows"] = offset.rows << 1 | offset.last
        return self._library.CommitProperties(
            max_commit_retries=0,
            app_transactions=[self._library.Transaction(f"{self._application}-{n}", v) for n, v in numbers.items()],
        )

    def _append(self, rows: pa.Table, offset: SinkOffset | None) -> None:
        self._library.write_deltalake(self._table, rows, mode="append", commit_properties=self._properties(offset))

    def _merge(self, rows: pa.Table, gone: npt.NDArray[np.bool_], offset: SinkOffset) -> None:
        source, target = "s", "t"
        values = {_quoted(n): f"{source}.{_quoted(n)}" for n in self._names}
        is_gone = f"{source}.{_quoted(_GONE)}"
        rows = rows.append_column(_GONE, pa.array(gone))
        # The library only skips files by statistics for `=`, which never matches NULL.
        same = " AND ".join(
            f"({target}.{_quoted(k)} {'<=>' if rows.column(k).null_count else '='} {source}.{_quoted(k)})"
            for k in self._delivery.key
        )
        (
            self._table.merge(
                rows, same, source_alias=source, target_alias=target, commit_properties=self._properties(offset)
            )
            .when_matched_delete(predicate=is_gone)
            .when_matched_update(updates=values)
            .when_not_matched_insert(updates=values, predicate=f"NOT {is_gone}")
            .execute()
        )

    def _check(self, rows: pa.Table, gone: npt.NDArray[np.bool_] | None) -> None:
        """Raises DELIVERY_REFUSED for an empty text in a partition column, which Delta's protocol reads as NULL."""
        for name in self._partition_columns:
            column = rows.column(name)
            empty = pc.fill_null(pc.equal(pc.binary_length(column), 0), fill_value=False) if _is_text(column) else None
            if empty is not None and pc.any(empty if gone is None else pc.and_not(empty, pa.array(gone))).as_py():
                raise error(
                    "DELIVERY_REFUSED",
                    f'a row has an empty text in partition column "{name}" of {self._what}',
                    detail="Delta Lake stores NULL for an empty text in a partition column.",
                    hint=f"Write nullif({name}, '') in the query of the sink, or choose another partition column.",
                )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (Error, Unavailable):
            raise
        except (self._exceptions.SchemaMismatchError, self._exceptions.DeltaProtocolError) as cause:
            raise error("DELIVERY_REFUSED", f"{self._what} refuses: {first_line(cause)}") from cause
        except (self._exceptions.DeltaError, OSError) as cause:
            reason = delta_problem(self._options.location, self._options.storage, cause)
            raise Unavailable(f"{self._what} can't be read or written: {reason}") from cause


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type))


def _is_partition_type(kind: SqlType) -> bool:
    """Whether the library reads all values of the type back unchanged from names of partitions."""
    return kind.name not in ("real", "double precision", "bytea") and not (kind.name == "numeric" and kind.decimals)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _options(delivery: Delivery) -> _Options:
    """The options of a delivery. Raises CONNECTOR_OPTION for invalid options."""
    check_form(delivery)
    given = delivery.connector
    options = SINK_OPTIONS.read(given)
    location = delta_location(given)
    partition_by = tuple(n.strip() for n in options.text("partition_by").split(",") if n.strip())
    for name in partition_by:
        check_partition_name(name, [c.name for c in delivery.columns])
    return _Options(location, delta_storage(given), partition_by, options.flag("create_table_if_not_exists"))


#: The reader features that don't affect the reading of files, or that are detected where they are used.
_READABLE: Final = (
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
)

_MAPPING: Final = "delta.columnMapping.mode"
_VECTORS: Final = "it marks rows as deleted by deletion vectors, which are not supported"


class DeltaLog:
    """The log of a table; see `versions.LakeLog`. columns: the columns to read."""

    def __init__(self, connector: Mapping[str, str], options: LakeOptions, columns: Schema) -> None:
        self._connector = connector
        self._options = options
        self._names = [c.name for c in columns]
        self._location = delta_location(connector)
        self._library = delta_library()
        self._exceptions = delta_library("deltalake.exceptions")

    @property
    def what(self) -> str:
        """The table, for messages."""
        return f'Delta table "{self._location}"'

    def named(self, version: int) -> str:
        return f"version {version}"

    def ids(self) -> dict[str, int]:
        return {}

    def schema(self) -> pa.Schema:
        with self._explained():
            table = self._open()
            if (problem := self._lacking(table)) is not None:
                raise error("FEATURE_NOT_SUPPORTED", f"{self.what} can't be read: {problem}")
            return pa.schema(table.schema().to_arrow())

    def newest(self) -> int:
        with self._explained():
            return int(self._open().version())

    def snapshot(self, version: int | None) -> Step:
        with self._explained():
            table = self._open(version)
            found = int(table.version())
            problem = self._lacking(table)
            if problem is None and pa.table(table.deletion_vectors().read_all()).num_rows:
                problem = _VECTORS
            problem = problem or column_problem(self._names, pa.schema(table.schema().to_arrow()))
            commit = self._commit(found)
            mark = Mark(found, "" if commit is None else _print(commit))
            return Step(mark, _files(pa.table(table.get_add_actions(flatten=False))), problem=problem)

    def after(self, mark: Mark, most: int) -> list[Step]:
        with self._explained():
            commit = self._commit(mark.version + 1)
            own = self._commit(mark.version)
            if own is not None and mark.print and _print(own) != mark.print:
                raise made_anew(self, mark.version)
            if commit is None and own is None:
                self._check_log(mark)
            found: list[Step] = []
            version = mark.version + 1
            while commit is not None:
                found.append(self._step(version, commit))
                version += 1
                commit = self._commit(version) if len(found) < most else None
            return found

    def _check_log(self, mark: Mark) -> None:
        """Raises the problem of a log in which the version after `mark` is missing."""
        newest = int(self._open().version())
        if newest < mark.version:
            raise made_anew(self, mark.version)
        if newest > mark.version:
            raise LakeProblem(
                f"versions {mark.version + 1} to {newest} of {self.what} are not all in its log any more", passes=False
            )

    def _open(self, version: int | None = None) -> Any:
        try:
            return self._library.DeltaTable(
                self._location, version=version, storage_options=delta_storage(self._connector)
            )
        except self._exceptions.TableNotFoundError as cause:
            raise error("UNDEFINED_OBJECT", f"there is no {self.what}", hint="Create it first.") from cause

    def _commit(self, version: int) -> bytes | None:
        """The actions of a version in the log; None if the log lacks the version."""
        name = f"_delta_log/{version:020}.json"
        try:
            if self._options.store is None:
                with open(os.path.join(self._options.root, name), "rb") as file:
                    return file.read()
            root = self._options.root
            return open_store(self._options.store).get(f"{root}/{name}" if root else name)
        except FileNotFoundError:
            return None

    def _lacking(self, table: Any) -> str | None:
        """The table's features that readers don't support."""
        protocol = table.protocol()
        return _protocol_problem(protocol.reader_features or ()) or _mapping_problem(table.metadata().configuration)

    def _step(self, version: int, commit: bytes) -> Step:
        """The changes of a version."""
        added: dict[str, dict[str, Any]] = {}
        removed: dict[str, dict[str, Any]] = {}
        changes: list[dict[str, Any]] = []
        problem = None
        for line in commit.splitlines():
            action = json.loads(line) if line.strip() else {}
            for kind, what in action.items():
                if kind == "add":
                    added[unquote(what["path"])] = what
                elif kind == "remove":
                    removed[unquote(what["path"])] = what
                elif kind == "cdc":
                    changes.append(what)
                elif kind == "protocol":
                    problem = problem or _protocol_problem(what.get("readerFeatures") or ())
                elif kind == "metaData":
                    problem = problem or self._metadata_problem(what)
        gone = [path for path, what in removed.items() if what.get("dataChange", True)]
        if any(a.get("deletionVector") for a in added.values()) or any(
            removed[path].get("deletionVector") for path in gone
        ):
            problem = problem or _VECTORS
        mark = Mark(version, _print(commit))
        if changes:
            return Step(
                mark,
                changes=_in_order(changes),
                left=tuple(sorted(removed)),
                came=_in_order(added.values()),
                is_change=True,
                problem=problem,
            )
        return Step(
            mark,
            _in_order(a for a in added.values() if a.get("dataChange", True)),
            tuple(sorted(gone)),
            left=tuple(sorted(removed.keys() - gone)),
            came=_in_order(a for a in added.values() if not a.get("dataChange", True)),
            is_change=bool(gone),
            problem=problem,
        )

    def _metadata_problem(self, metadata: Mapping[str, Any]) -> str | None:
        found = _mapping_problem(metadata.get("configuration") or {})
        schema = pa.schema(self._library.Schema.from_json(metadata["schemaString"]).to_arrow())
        return found or column_problem(self._names, schema)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the library to LakeProblem."""
        try:
            yield
        except (Error, LakeProblem):
            raise
        except StoreProblem as cause:
            raise LakeProblem(str(cause), passes=True) from cause
        except self._exceptions.DeltaProtocolError as cause:
            raise LakeProblem(f"{self.what} can't be read: {first_line(cause)}", passes=False) from cause
        except (self._exceptions.DeltaError, OSError, ValueError, KeyError) as cause:
            reason = delta_problem(self._location, delta_storage(self._connector), cause)
            raise LakeProblem(f"{self.what} can't be read for now: {reason}", passes=True) from cause


def _protocol_problem(features: Iterable[str]) -> str | None:
    lacking = sorted(set(features) - set(_READABLE))
    return f"its reader feature {lacking[0]} is not supported" if lacking else None


def _mapping_problem(configuration: Mapping[str, str]) -> str | None:
    mode = configuration.get(_MAPPING, "none").lower()
    return None if mode == "none" else f"column mapping ({_MAPPING} = {mode}) is not supported"


def _print(commit: bytes) -> str:
    return hashlib.blake2b(commit, digest_size=8).hexdigest()


def _in_order(actions: Iterable[Mapping[str, Any]]) -> tuple[LakeFile, ...]:
    """The files of actions in order."""
    files = (LakeFile(unquote(a["path"]), a["size"], _values(a.get("partitionValues") or {})) for a in actions)
    return tuple(sorted(files, key=lambda file: file.path))


def _values(values: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    """The values of partitions, where an empty text is NULL."""
    return tuple(sorted((name, value or None) for name, value in values.items()))


def _files(actions: pa.Table) -> tuple[LakeFile, ...]:
    """The files of a version, with typed values of partitions from the library."""
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    values: list[dict[str, str | None]] = [{} for _ in paths]
    if "partition" in actions.column_names:
        partition = actions.column("partition").combine_chunks()
        for field in partition.type:
            for found, text in zip(values, _texts(partition.field(field.name)), strict=True):
                found[field.name] = text
    files = (LakeFile(unquote(p), s, _values(v)) for p, s, v in zip(paths, sizes, values, strict=True))
    return tuple(sorted(files, key=lambda file: file.path))


def _texts(array: Any) -> list[str | None]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    texts: list[str | None] = pc.cast(array, pa.string()).to_pylist()
    return texts


SOURCES: Final = dict.fromkeys(("delta", "deltalake"), lake_connector(DeltaLog, DELTA_SOURCE))
SINKS: Final = {"deltalake": connector_for(DeltaTarget, SINK_OPTIONS, "Check the option location, and credentials.")}
