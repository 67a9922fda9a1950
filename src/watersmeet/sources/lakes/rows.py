"""Reading slices of tables of lakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.convert import convert
from watersmeet.objectstores.access import ObjectFile
from watersmeet.slices import LakeSlice, VersionSlice
from watersmeet.sources.base import DeadLetterSink, SourceRows, Unavailable
from watersmeet.sources.dead_letters import DeadLetterWriter
from watersmeet.sources.lakes.datafiles import data_problem, open_data
from watersmeet.sources.lakes.versions import LakeProblem
from watersmeet.sources.parquetrows import ParquetReader, RowGroups
from watersmeet.sources.rows import DamagedError, nothing
from watersmeet.sources.specs import LakeSpec
from watersmeet.types import VARCHAR, Field

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
