"""Reading slices of tables of lakes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.rows import DamagedError, nothing
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, Unavailable
from watersmeet.connectors.files.cutting import open_file
from watersmeet.connectors.files.parquet import Footer, ParquetReader, RowGroups, read_footer
from watersmeet.connectors.lakes.options import LakeOptions, LakeSpec
from watersmeet.connectors.lakes.versions import LakeProblem
from watersmeet.formats.convert import convert
from watersmeet.objectstores.base import Location, StoreProblem, is_url
from watersmeet.objectstores.stores import ObjectFile
from watersmeet.values.slices import LakeFile, LakeSlice, VersionSlice
from watersmeet.values.types import VARCHAR, Field

#: By other schemes of URLs, what they are here.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def open_data(options: LakeOptions, file: LakeFile) -> BinaryIO:
    """A data file, for reading. LakeProblem if it is not there, or can't be read for now.

    Objects are not asked for before they are read.
    """
    store, name = _place(options, file.path)
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
    """What it means that a data file can't be read."""
    if isinstance(cause, FileNotFoundError):
        return LakeProblem(
            f"data file {file.path} is gone, as VACUUM and the expiry of snapshots remove those of old versions",
            passes=False,
        )
    why = str(cause) if isinstance(cause, StoreProblem) else cause.strerror or str(cause)
    return LakeProblem(f"data file {file.path} can't be read: {why}", passes=True)


def footer_of(options: LakeOptions, file: LakeFile) -> Footer:
    """What the footer of a data file says. LakeProblem."""
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


def _place(options: LakeOptions, path: str) -> tuple[Location | None, str]:
    """(store, name) of a file; of one of this machine (None, its path). LakeProblem for one that may not be read."""
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


#: The column of files of changes that says what happened to a row, and which of its values mean what.
_CHANGE: Final = Field("_change_type", VARCHAR)

_KINDS: Final = {"deleted": ("delete", "update_preimage"), "inserted": ("insert", "update_postimage")}


def read_lake_slice(
    piece: LakeSlice | VersionSlice, spec: LakeSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice (`reading.read_slice`). base.Unavailable if the file can't be read.

    What is wrong with a row that goes was said when it came.
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
    """The rows of the row groups. base.Unavailable."""
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
