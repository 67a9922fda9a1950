"""Versions of a table of a lake, as its log has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from watersmeet.errors import did_you_mean, error
from watersmeet.slices import LakeFile
from watersmeet.sources.parquetrows import type_problem
from watersmeet.types import Schema


class LakeProblem(Exception):  # noqa: N818 - a state that passes, or that somebody mends
    """Why a table can't be read. passes: nobody has to do anything here; the table is asked again."""

    def __init__(self, message: str, *, passes: bool) -> None:
        super().__init__(message)
        self.message = message
        self.passes = passes


class Mark(NamedTuple):
    """A version that was read: its number, or the id of a snapshot, 0 for none.

    print: of what the log says of it; empty: unknown.
    """

    version: int
    print: str


@dataclass(frozen=True)
class Step:
    """What a version did, or all that there is in it if it is the first one that is read.

    added, removed: files whose rows came or went. changes: files with the rows that changed; then `added` and `removed`
    are empty. left, came: files without changed rows that go and come. is_change: it removes rows. problem: why it
    can't be read. All files are in the order of their paths.
    """

    mark: Mark
    added: tuple[LakeFile, ...] = ()
    removed: tuple[str, ...] = ()
    changes: tuple[LakeFile, ...] = ()
    left: tuple[str, ...] = ()
    came: tuple[LakeFile, ...] = ()
    is_change: bool = False
    problem: str | None = None


class LakeLog(Protocol):
    """The log of a table. All methods raise LakeProblem. Used by one thread at a time."""

    @property
    def what(self) -> str:
        """What it is, for messages."""

    def named(self, version: int) -> str:
        """What a version is called, for messages."""

    def ids(self) -> Mapping[str, int]:
        """By column of the newest version, its id; empty where columns are known by their names."""

    def schema(self) -> pa.Schema:
        """The columns of the newest version. Also raises UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""

    def newest(self) -> int:
        """The newest version."""

    def snapshot(self, version: int | None) -> Step:
        """All that there is in a version; None: in the newest one."""

    def after(self, mark: Mark, most: int) -> list[Step]:
        """The versions that follow one that was read, at most so many. A problem if that one is no longer part of the
        table, or what followed it is gone.
        """


def made_anew(log: LakeLog, version: int) -> LakeProblem:
    """That a version that was read is another one now."""
    return LakeProblem(f"{log.what} was made anew: {log.named(version)} is another one", passes=False)


def check_columns(what: str, columns: Schema, there: pa.Schema) -> None:
    """Whether the columns of a source are in the table. UNDEFINED_COLUMN, DATATYPE_MISMATCH."""
    for column in columns:
        if column.name not in there.names:
            raise error(
                "UNDEFINED_COLUMN",
                f'{what} has no column "{column.name}"',
                hint=did_you_mean(column.name, there.names) or "It has " + ", ".join(there.names) + ".",
            )
        found = there.field(column.name).type
        if type_problem(column, found) is not None:
            raise error(
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of {what} has type {found}',
                detail=f"It is declared as {column.type.sql}.",
            )


def column_problem(columns: Sequence[str], schema: pa.Schema) -> str | None:
    """Why a version with other columns can't be read: one that is read is gone."""
    gone = [name for name in columns if name not in schema.names]
    return f'column "{gone[0]}" is no longer there' if gone else None
