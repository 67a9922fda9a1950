"""The log of a table of Delta Lake.

The library opens the table and says what is in a version; what each version did stands in its commit, a file of JSON
lines. Source: "Delta Transaction Log Protocol", of actions, of partition values and of reader features.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.lakes.client import delta_library, delta_location, delta_problem, delta_storage, first_line
from watersmeet.connectors.lakes.options import LakeOptions
from watersmeet.connectors.lakes.versions import LakeProblem, Mark, Step, column_problem, made_anew
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import StoreProblem
from watersmeet.objectstores.stores import open_store
from watersmeet.values.slices import LakeFile
from watersmeet.values.types import Schema

#: Reader features that change nothing of how files are read, or that are noticed where they are used.
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
    """See `versions.LakeLog`. columns: those that are read."""

    def __init__(self, connector: Mapping[str, str], options: LakeOptions, columns: Schema) -> None:
        self._connector = connector
        self._options = options
        self._names = [c.name for c in columns]
        self._location = delta_location(connector)
        self._library = delta_library()
        self._exceptions = delta_library("deltalake.exceptions")

    @property
    def what(self) -> str:
        """What it is, for messages."""
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
        """What is wrong where the log has neither a version that was read nor the next one."""
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
        """What the log says of a version; None if it says nothing."""
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
        """What the table has that can't be read."""
        protocol = table.protocol()
        return _protocol_problem(protocol.reader_features or ()) or _mapping_problem(table.metadata().configuration)

    def _step(self, version: int, commit: bytes) -> Step:
        """What a version did."""
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
        """Errors of the library as LakeProblem."""
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
    """The files of actions."""
    files = (LakeFile(unquote(a["path"]), a["size"], _values(a.get("partitionValues") or {})) for a in actions)
    return tuple(sorted(files, key=lambda file: file.path))


def _values(values: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    """Empty texts are NULL."""
    return tuple(sorted((name, value or None) for name, value in values.items()))


def _files(actions: pa.Table) -> tuple[LakeFile, ...]:
    """The files of a version, of which the library gives the values of partitions in their types."""
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
