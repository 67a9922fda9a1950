"""A lake table as a source: the rows of one version, then the changes of each later version; and the reader of its
slices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import ARRIVAL, Relation
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.options import OptionSet
from watersmeet.connectors.base.sources import (
    DeadLetterSink,
    History,
    Notification,
    Poll,
    SourceConnector,
    SourceRows,
    Unavailable,
    check_position,
    is_known_slice,
    no_withdrawal,
)
from watersmeet.connectors.files.cutting import GROUP_BYTES
from watersmeet.connectors.files.listing import open_file
from watersmeet.connectors.files.parquet import Footer, ParquetReader, RowGroups, read_footer
from watersmeet.connectors.files.rows import DamagedError, nothing
from watersmeet.connectors.lakes.client import IDS, START, LakeOptions, LakeSpec, lake_options
from watersmeet.connectors.lakes.versions import (
    RETRY_US,
    ROLES,
    InVersion,
    LakeLog,
    LakeProblem,
    Mark,
    ReadFiles,
    Step,
    VersionPoll,
    check_columns,
    made_anew,
)
from watersmeet.errors import Error, error
from watersmeet.formats.convert import convert
from watersmeet.formats.typemapping import columns_of
from watersmeet.objectstores.base import Location, StoreProblem, is_url
from watersmeet.objectstores.stores import ObjectFile
from watersmeet.values.slices import LakeFile, LakeRole, LakeSlice, SourceSlice, VersionSlice
from watersmeet.values.types import VARCHAR, Field, Schema

#: Alternative schemes of URLs, with the schemes of the stores.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def open_data(options: LakeOptions, file: LakeFile) -> BinaryIO:
    """Opens a data file for reading. Raises LakeProblem if it is missing or temporarily unreadable.

    For an object, the first request is sent at the first read.
    """
    store, name = _data_location(options, file.path)
    try:
        if store is None:
            found = open_file(options.root, name)
            size_bytes = os.fstat(found.fileno()).st_size
            if size_bytes != file.size_bytes:
                found.close()
                raise LakeProblem(
                    f"data file {file.path} has {size_bytes} bytes, not {file.size_bytes} as the table says",
                    passes=False,
                )
            return found
        return ObjectFile(store, name, file.size_bytes, None)
    except OSError as cause:
        raise data_problem(file, cause) from cause


def data_problem(file: LakeFile, cause: OSError) -> LakeProblem:
    """The problem of an unreadable data file."""
    if isinstance(cause, FileNotFoundError):
        return LakeProblem(
            f"data file {file.path} is gone, as VACUUM and the expiry of snapshots remove those of old versions",
            passes=False,
        )
    why = str(cause) if isinstance(cause, StoreProblem) else cause.strerror or str(cause)
    return LakeProblem(f"data file {file.path} can't be read: {why}", passes=True)


def footer_of(options: LakeOptions, file: LakeFile) -> Footer:
    """The footer of a data file. Raises LakeProblem."""
    found = open_data(options, file)
    with found:
        try:
            footer = read_footer(found, file.size_bytes)
            if isinstance(found, ObjectFile):
                found.check()
        except OSError as cause:
            raise data_problem(file, cause) from cause
    if footer is None:
        raise LakeProblem(f"data file {file.path} is damaged, or not one of Parquet", passes=False)
    return footer


def _data_location(options: LakeOptions, path: str) -> tuple[Location | None, str]:
    """The store and the name of a file; None and the path for a local file. Raises LakeProblem for a file that must not
    be read.
    """
    scheme, separator, rest = path.partition(":")
    if separator and scheme == "file":
        path = "/" + rest.lstrip("/")
    elif separator and rest.startswith("//"):
        bucket, _, name = rest[2:].partition("/")
        url = f"{_SCHEMES.get(scheme, scheme)}://{bucket}"
        if not is_url(url):
            raise LakeProblem(f"data file {path} is in a store of kind {scheme}, which is not supported", passes=False)
        return Location(url, options.settings), name
    elif options.store is not None:
        return options.store, f"{options.root}/{path}" if options.root else path
    if options.store is not None or not options.root:
        raise LakeProblem(f"data file {path} is of this machine, and the table is in a store", passes=False)
    return None, path


#: The column with the kind of a change in files of changes, and the meaning of its values.
_CHANGE: Final = Field("_change_type", VARCHAR)

_KINDS: Final = {"deleted": ("delete", "update_preimage"), "inserted": ("insert", "update_postimage")}


def read_lake_slice(
    piece: LakeSlice | VersionSlice, spec: LakeSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice (`registry.read_slice`). Raises base.Unavailable if the file can't be read.

    Problems of a deleted row are not reported again, because its insertion reported them.
    """
    if isinstance(piece, VersionSlice):
        return nothing(columns)
    goes = piece.role in ("removed", "deleted")
    letters = DeadLetterWriter(None) if goes else dead_letters
    rows = _read(piece, spec, columns, letters)
    return replace(rows, diff=np.full(len(rows.ordinals), -1, np.int64)) if goes else rows


def _read(piece: LakeSlice, spec: LakeSpec, columns: Sequence[Field], letters: DeadLetterSink) -> SourceRows:
    values = dict(piece.file.values)
    constants = {
        f.name: convert([pa.array([values[f.name]], pa.string())], [f.type])[0]
        for f in spec.columns
        if f.name in values
    }
    for field in spec.columns:
        done = constants.get(field.name)
        if done is None:
            continue
        is_null = done.column.null_count and (not field.nullable or field.name in spec.key)
        if done.bad is not None and done.bad.any():
            problem = f'value: column "{field.name}" is not {field.type.sql}'
        elif is_null:
            problem = f'null: column "{field.name}" is NULL'
        else:
            continue
        letters.add(piece.file.path, None, problem, values[field.name] or "", max(1, piece.rows))
        return nothing(columns)
    kinds = _KINDS.get(piece.role)
    fields = [f for f in spec.columns if f.name not in constants]
    asked = [f for f in columns if f.name not in constants]
    if kinds is not None:
        fields, asked = [*fields, _CHANGE], [*asked, _CHANGE]
    key = [name for name in spec.key if name not in constants]
    ids = dict(spec.options.ids) or None
    reader = ParquetReader(fields, key, asked, piece.file.path, letters, may_lack=True, ids=ids)
    found = _decoded(piece, spec, reader)
    table, ordinals = found.table, found.ordinals
    if kinds is not None:
        meant = pc.is_in(table.column(_CHANGE.name), value_set=pa.array(kinds))
        table, ordinals = table.filter(meant), ordinals[meant.to_numpy(zero_copy_only=False)]
    arrays = [
        pa.repeat(constants[f.name].column[0], len(ordinals)) if f.name in constants else table.column(f.name)
        for f in columns
    ]
    schema = pa.schema([pa.field(f.name, f.type.arrow) for f in columns])
    return SourceRows(pa.Table.from_arrays(arrays, schema=schema), ordinals)


def _decoded(piece: LakeSlice, spec: LakeSpec, reader: ParquetReader) -> SourceRows:
    """The rows of the row groups. Raises base.Unavailable."""
    groups = RowGroups(piece.file.size_bytes, piece.begin, piece.end, piece.rows, piece.line)
    try:
        with open_data(spec.options, piece.file) as file:
            try:
                return reader.read(file, groups)
            except DamagedError as cause:
                reason = f"damaged: the file is not complete, or not of its format: {cause}"
            except OSError as cause:
                raise data_problem(piece.file, cause) from cause
            finally:
                if isinstance(file, ObjectFile):
                    file.check()
    except LakeProblem as problem:
        raise Unavailable(problem.message) from problem
    except OSError as cause:
        raise Unavailable(data_problem(piece.file, cause).message) from cause
    reader.dead_letters.add(piece.file.path, None, reason, f"from {piece.begin} to {piece.end}", max(1, piece.rows))
    return nothing(reader.requested)


#: The maximum number of slices per poll, which keeps intents small.
MAX_SLICES: Final = 1000

OpenLog = Callable[[Mapping[str, str], LakeOptions, Schema], LakeLog]

"""Opens the log of a table, given the columns to read. Raises LIBRARY_MISSING."""


class LakeSource:
    """The rows of a lake table.

    Laws: the rows of the first version are read once, then the rows that each later version adds, in the order of
    versions. Files without changed rows, such as those of a compaction, have no effect. A version that removes rows
    stops the source, is skipped as a whole, or is applied as a whole (`LakeOptions.on_delete`). See
    `base.sources.Source` for the life of a source.
    """

    def __init__(self, relation: Relation, open_log: OpenLog) -> None:
        self.relation_id = relation.id
        self.options = _options(relation)
        skipping = relation.connector_altered("on_delete = 'skip'")
        following = relation.connector_altered("on_delete = 'follow'")
        self._to_go_on = f"To leave out such versions: {skipping}"
        if _may_lose_rows(relation):
            self._to_go_on += f"; to delete the rows here, too: {following}"
        self._spec = LakeSpec(relation.given, relation.primary_key, self.options)
        self._log = open_log(relation.connector, self.options, relation.given)
        self._versions = VersionPoll(self._log, self.options.refresh_s * 1_000_000 if self.options.is_far else None)
        self._read = ReadFiles()
        self._steps: list[Step] = []
        """The known versions that are not read yet."""
        self._retry_us = 0
        self._problem: LakeProblem | None = None
        """The problem of the last poll."""
        self._stop: LakeProblem | None = None
        """The problem with which the next version stops the source."""

    def spec(self) -> LakeSpec:
        return self._spec

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        expected = 0 if position is None else position["slices"]
        check_position(self.relation_id, expected, self._read.slices)
        self._look(now_us, fresh=fresh)
        self._stop = None
        pieces: list[LakeSlice | VersionSlice] = []
        more = False
        try:
            for step in self._steps:
                if (step.is_change and pieces) or budget_rows <= 0 or budget_bytes <= 0 or len(pieces) >= MAX_SLICES:
                    more = True
                    break
                found, complete = self._pieces(step, bool(pieces), budget_rows, budget_bytes)
                pieces += found
                budget_rows -= sum(piece.rows for piece in found)
                budget_bytes -= sum(piece.size_bytes for piece in found)
                if not complete:
                    more = True
                    break
        except LakeProblem as problem:
            self._stop = problem
        numbered = tuple(piece.at(ordinal) for ordinal, piece in enumerate(pieces, self._read.slices))
        return Poll(numbered, {"slices": self._read.slices + len(numbered)}, more)

    def listen(self, notification: Notification) -> None:
        self._versions.listen(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        for piece in slices:
            if is_known_slice(self.relation_id, piece, self._read.slices, "Rows"):
                continue
            self._read.apply(piece)
            if isinstance(piece, VersionSlice):
                done = [i for i, step in enumerate(self._steps) if step.mark.version == piece.version]
                self._steps = self._steps[done[0] + 1 :] if done else []

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        if any(piece.ordinal < self._read.slices for piece in slices):
            raise no_withdrawal(self.relation_id, "Which files a lake table had is only known as of its newest slices.")

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        """The history from the files that exist after compactions. Raises CONNECTOR_OPTION if one is missing."""
        index, group, line, ordinal = cursor or (0, 0, 1, 0)
        held = list(self._read.held.values())
        pieces: list[LakeSlice] = []
        mark = self._read.mark
        while index < len(held) and budget_rows > 0 and budget_bytes > 0 and len(pieces) < MAX_SLICES:
            file, groups = held[index]
            try:
                for piece in self._cuts(mark or Mark(0, ""), "added", file, budget_rows, group, line, upto=groups):
                    if pieces and (piece.rows > budget_rows or piece.size_bytes > budget_bytes):
                        return History(tuple(pieces), [index, group, line, ordinal])
                    pieces.append(piece.at(ordinal))
                    group, line, ordinal = piece.end, line + piece.rows, ordinal + 1
                    budget_rows -= piece.rows
                    budget_bytes -= piece.size_bytes
            except LakeProblem as problem:
                raise error(
                    "RUNTIME_UNAVAILABLE" if problem.passes else "CONNECTOR_OPTION",
                    f"what a source has read can't be read once more: {problem.message}",
                    hint=None if problem.passes else "Create another source of the table.",
                ) from problem
            index, group, line = index + 1, 0, 1
        return History(tuple(pieces), [index, group, line, ordinal] if index < len(held) else None)

    def save(self, path: Path) -> None:
        self._read.save(path)

    def load(self, path: Path) -> None:
        self._read = ReadFiles.load(path)

    def status(self) -> dict[str, Any]:
        """The status as JSON: the planned rows, the last read version, the number of skipped versions, and the state
        with its reason.

        state: `running`; `waiting` for the table; `stalled` until a statement resumes it.
        """
        problem, mark = self._stop or self._problem, self._read.mark
        state = "running" if problem is None else "waiting" if problem.passes else "stalled"
        reason = None if problem is None else problem.message
        return {
            "rows_planned": self._read.rows,
            "version": None if mark is None else mark.version,
            "files": len(self._read.held),
            "skipped_versions": self._read.skipped,
            "state": state,
            "reason": reason,
            "problem": reason,
        }

    def _look(self, now_us: int, *, fresh: bool) -> None:
        """Finds the versions after the known ones, unless enough are known."""
        within = self._read.within
        if not self._steps and within is not None:
            if now_us < self._retry_us and not fresh:
                return
            self._steps = self._begun(within)
            self._retry_us = now_us + RETRY_US
            if not self._steps:
                return
            self._problem = None
        if self._steps and not fresh:
            return
        mark = self._steps[-1].mark if self._steps else self._read.mark
        if mark is None and self.options.start is not None:
            mark = Mark(self.options.start, "")
        found = self._versions.after(mark, now_us, fresh=fresh)
        if found is None:
            return
        if isinstance(found, LakeProblem):
            self._problem = found
            return
        self._problem = None
        self._steps += found

    def _begun(self, within: InVersion) -> list[Step]:
        """The version that was partly read before a restart; empty if it is unavailable or was replaced."""
        mark = self._read.mark or (None if self.options.start is None else Mark(self.options.start, ""))
        try:
            found = [self._log.snapshot(within.version)] if mark is None else self._log.after(mark, 1)
            if all(not step.mark.print or step.mark.print == (within.print or step.mark.print) for step in found):
                return found
            self._problem = made_anew(self._log, within.version)
        except LakeProblem as problem:
            self._problem = problem
        except Error as problem:
            self._problem = LakeProblem(problem.message, passes=False)
        return []

    def _pieces(
        self, step: Step, follows: bool, budget_rows: int, budget_bytes: int
    ) -> tuple[list[LakeSlice | VersionSlice], bool]:
        """Slices of a version, and whether they are all its slices. follows: whether slices of another version precede
        them. Raises LakeProblem.
        """
        skips = step.is_change and self.options.on_delete == "skip"
        if step.is_change and self.options.on_delete == "stop":
            raise LakeProblem(f"{self._log.named(step.mark.version)} removes rows. {self._to_go_on}", passes=False)
        if step.problem is not None and not skips:
            raise LakeProblem(f"{self._log.named(step.mark.version)} can't be read: {step.problem}", passes=False)
        end = VersionSlice(
            relation=self.relation_id,
            version=step.mark.version,
            print=step.mark.print,
            left=() if skips else step.left,
            came=() if skips else step.came,
            skipped=skips,
        )
        if skips:
            return [end], True
        pieces: list[LakeSlice | VersionSlice] = []
        for piece in self._unread(step, budget_rows):
            fits = piece.rows <= budget_rows and piece.size_bytes <= budget_bytes and len(pieces) < MAX_SLICES
            if (pieces or follows) and not fits and not step.is_change:
                return pieces, False
            pieces.append(piece)
            budget_rows -= piece.rows
            budget_bytes -= piece.size_bytes
        return [*pieces, end], True

    def _unread(self, step: Step, most_rows: int) -> Iterator[LakeSlice]:
        """The slices of a version that are not read yet. most_rows: see `_cuts`. Raises LakeProblem."""
        within = self._read.within
        reached = None if within is None or within.version != step.mark.version else within
        for role, file in self._files(step):
            group, line = 0, 1
            if reached is not None:
                if (ROLES.index(role), file.path) < (ROLES.index(reached.role), reached.path):
                    continue
                if (role, file.path) == (reached.role, reached.path):
                    group, line = reached.end, reached.next_line
                    if group == reached.total:
                        continue
            yield from self._cuts(step.mark, role, file, most_rows, group, line)

    def _files(self, step: Step) -> Iterator[tuple[LakeRole, LakeFile]]:
        """The files of a version, in the order in which they are read."""
        for path in step.removed:
            if path not in self._read.held:
                named = self._log.named(step.mark.version)
                raise LakeProblem(f"{named} removes file {path}, which was not read", passes=False)
            yield "removed", self._read.held[path].file
        yield from (("deleted", file) for file in step.changes)
        yield from (("added", file) for file in step.added)
        yield from (("inserted", file) for file in step.changes)

    def _cuts(
        self,
        mark: Mark,
        role: LakeRole,
        file: LakeFile,
        most_rows: int,
        group: int,
        line: int,
        *,
        upto: int | None = None,
    ) -> Iterator[LakeSlice]:
        """The slices of a file from a row group on. most_rows: the limit of each slice, unless a row group has more.
        upto: the row group before which they end. Raises LakeProblem.
        """
        footer = footer_of(self.options, file)
        total = len(footer.rows)
        last = total if upto is None else upto
        while group < last or (group == last == 0):
            end, rows, size_bytes = group, 0, 0
            while end < last and (
                end == group or (size_bytes + footer.sizes[end] <= GROUP_BYTES and rows + footer.rows[end] <= most_rows)
            ):
                rows, size_bytes, end = rows + footer.rows[end], size_bytes + footer.sizes[end], end + 1
            yield LakeSlice(
                relation=self.relation_id,
                rows=rows,
                size_bytes=size_bytes,
                version=mark.version,
                print=mark.print,
                role=role,
                file=file,
                begin=group,
                end=end,
                total=total,
                line=line,
            )
            if not total:
                return
            group, line = end, line + rows


def _may_lose_rows(relation: Relation) -> bool:
    return bool(relation.primary_key) or relation.loses_rows


def _options(relation: Relation) -> LakeOptions:
    """The options of a source. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    options = lake_options(relation.connector, may_lose_rows=_may_lose_rows(relation))
    if options.on_delete == "follow" and relation.loses_rows and ARRIVAL in relation.defaults.values():
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "on_delete = 'follow' is not supported without a primary key if a column has the time of arrival",
            detail="Rows that go are those that are equal in all columns.",
        )
    return options


def lake_connector(open_log: OpenLog, options: OptionSet) -> SourceConnector:
    """The source connector of a lake system. open_log: opens the log of a table."""
    return SourceConnector(
        lambda relation: LakeSource(relation, open_log),
        LakeSpec,
        (LakeSlice, VersionSlice),
        read_lake_slice,
        options,
        lambda relation: begun(relation.as_stored, open_log),
        lambda connector: lake_schema(connector, open_log),
    )


def begun(relation: Relation, open_log: OpenLog) -> dict[str, str]:
    """The final options of a source or table, with the table's names of the columns. CREATE, which opens the table, and
    ALTER call it.

    Raises UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH, FEATURE_NOT_SUPPORTED, and RUNTIME_UNAVAILABLE if the
    table is temporarily unreadable.
    """
    connector, columns = relation.connector, relation.given
    options = _options(relation)
    log = open_log(connector, options, columns)
    try:
        check_columns(log.what, columns, log.schema())
        ids = {**log.ids(), **dict(options.ids)}
        start = log.newest() if not options.snapshot and options.start is None else options.start
    except LakeProblem as problem:
        raise _as_error(problem) from problem
    noted = {IDS: json.dumps({c.name: ids[c.name] for c in columns})} if ids else {}
    return {**connector, **noted, **({} if start is None else {START: str(start)})}


def lake_schema(connector: Mapping[str, str], open_log: OpenLog) -> Schema:
    """The columns of a table with SQL types. Raises the same errors as `begun`."""
    options = lake_options({**connector, "on_delete": "stop"}, may_lose_rows=False)
    try:
        log = open_log(connector, options, ())
        return columns_of(log.what, log.schema())
    except LakeProblem as problem:
        raise _as_error(problem) from problem


def _as_error(problem: LakeProblem) -> Error:
    return error(
        "RUNTIME_UNAVAILABLE" if problem.passes else "CONNECTOR_OPTION",
        problem.message,
        hint="Check the location of the table, and credentials.",
    )
