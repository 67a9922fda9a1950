"""Slices: the pieces of input that epochs read, by kind.

The driver cuts slices, tasks read them. Intents, jobs and commits have them in the form of `serialization`. A slice
that is read again gives the same rows with the same ordinals, or the same dead letters.

A new kind of slice is a class here. Its reader is in `runtime.slices` if the database stores what it names, otherwise
in `connectors.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from watersmeet.values.serialization import kinds

Print = tuple[int, str]
"""(length in bytes, fingerprint of these bytes)."""

Aside = Literal["vanished", "damaged", "replaced"]
"""Why a file is set aside: it was gone, it is not complete or not of its format, another one has its name."""

Segments = tuple[tuple[int, int], ...]
"""(first event, time in microseconds): from that event on, events are made at the source's pace from that time on."""

#: The classes of slices by their kind.
KINDS: Final[dict[str, type[Slice]]] = {}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Base: a piece of input.

    relation: id of the relation whose rows it has. rows, size_bytes: of what it names; estimates, with rows never below
    the truth. seq: its place in the epoch's order of arrival, which the intent gives it; what one transaction did to a
    relation has one place.
    """

    kind: ClassVar[str]
    relation: str
    rows: int = 0
    size_bytes: int = 0
    seq: int = 0

    def __init_subclass__(cls, **options: Any) -> None:
        """Every class of slices with a `kind` is one of its own."""
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            assert cls.kind not in KINDS, f"two kinds of slices are called {cls.kind}"
            KINDS[cls.kind] = cls


@dataclass(frozen=True, kw_only=True)
class ChangeSlice(Slice):
    """A blob of what one commit changed of a relation, or of a snapshot.

    file, offset_bytes: where the blob is (`BlobRef`). first: how many rows of the change come before it, 0 in a
    snapshot.
    """

    kind: ClassVar[str] = "change"
    file: str
    offset_bytes: int
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceSlice(Slice):
    """Base of the slices of connectors.

    ordinal: 0, 1, 2 … in the life of the source: the order of arrival. A history has ordinals of its own.
    """

    ordinal: int = 0

    def at(self, ordinal: int) -> Self:
        """The same slice with that ordinal."""
        return replace(self, ordinal=ordinal)


class FileVersion(NamedTuple):
    """By what a file is known to be as it was. inode: 0 if it isn't known."""

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, kw_only=True)
class FileSlice(SourceSlice):
    """Part of a file.

    path: the file's name, relative to the directory of the source. version: the file as it was when the slice was cut.
    begin, end: bytes of a text file, row groups of a Parquet file, 0 and 1 of a gzip file. line: the number of the
    first line (Parquet: row), from 1; lines: how many newlines (Parquet: rows) there are in it. total: the row groups
    of a Parquet file, 1 of a gzip file; None if the file may grow. head, tail: fingerprints of the first and the last
    bytes, up to `end` or, with `total`, of the whole file; head of an object: its size and its tag. header: the names
    in the header of a CSV file, None without one. lacks: of a file's first slice, the declared columns that the file
    does not have. unterminated: it ends without a newline. long: it is one line that is longer than records may be.
    again: which time the file is read once more, 0 for the first time.
    """

    kind: ClassVar[str] = "file"
    path: str
    version: FileVersion
    begin: int
    end: int
    line: int
    lines: int
    head: Print
    tail: Print
    total: int | None = None
    header: tuple[str, ...] | None = None
    lacks: tuple[str, ...] = ()
    unterminated: bool = False
    long: bool = False
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class AsideSlice(SourceSlice):
    """A file that is set aside as a whole, as it was then: no rows, a dead letter. again: as in `FileSlice`."""

    kind: ClassVar[str] = "aside"
    path: str
    version: FileVersion
    reason: Aside
    lost_bytes: int
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class RenamingSlice(SourceSlice):
    """Files of a source that have new names: no rows. names: (the old one, the new one), sorted."""

    kind: ClassVar[str] = "renaming"
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class MessageSlice(SourceSlice):
    """The messages of a partition of a topic with offsets in [begin, end), as far as there are any: offsets have gaps.

    All of them are committed: a reader of committed messages finds the same ones each time. topic_id: the brokers' id
    of the topic.
    """

    kind: ClassVar[str] = "messages"
    #: Rows that are changes (`SourceRows.kept`) have as ordinals so many times the number of their message.
    ROWS_OF_CHANGE: ClassVar[int] = 2
    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int

    def offset_of(self, ordinal: int) -> int:
        """The offset of the message of a row that is a change."""
        return self.begin + ordinal // self.ROWS_OF_CHANGE


@dataclass(frozen=True, kw_only=True)
class JumpSlice(SourceSlice):
    """Where reading of a topic goes on after messages were lost: no rows, a dead letter for each partition.

    topic_id: the id of the topic from now on. offsets: (partition, the next offset so far, the next offset now),
    sorted; of a topic that was made anew all its partitions, each from the first message that is there.
    """

    kind: ClassVar[str] = "jump"
    topic: str
    topic_id: str
    reason: Literal["expired", "recreated"]
    offsets: tuple[tuple[int, int, int], ...]


class LakeFile(NamedTuple):
    """A data file of a table of a lake. path: relative to the table's place, or a URL. values: by column of the table's
    partitions, its value in all rows, as text; NULL: None.
    """

    path: str
    size_bytes: int
    values: tuple[tuple[str, str | None], ...] = ()


LakeRole = Literal["removed", "deleted", "added", "inserted"]
"""What a version of a table of a lake does with rows of a file: all of them go or come; or those of a file of changes
that were deleted, or inserted, as it says itself.
"""


@dataclass(frozen=True, kw_only=True)
class LakeSlice(SourceSlice):
    """The row groups [begin, end), of `total`, of a data file, as a version of a table of a lake has it.

    version: its number, or the id of the snapshot. print: of what the log says of it; empty: unknown. line: the number
    of the first row, from 1.
    """

    kind: ClassVar[str] = "lake"
    version: int
    print: str
    role: LakeRole
    file: LakeFile
    begin: int
    end: int
    total: int
    line: int


@dataclass(frozen=True, kw_only=True)
class VersionSlice(SourceSlice):
    """The end of a version of a table of a lake: no rows. print: of what the log says of it; empty: unknown.

    left, came: the files without changed rows that it has put in place of others, as compaction does. skipped: nothing
    of it was read, as it removes rows.
    """

    kind: ClassVar[str] = "version"
    version: int
    print: str
    left: tuple[str, ...] = ()
    came: tuple[LakeFile, ...] = ()
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class EventSlice(SourceSlice):
    """The events [begin, end) of a source that makes them. started_us: when the source began.

    segments: when the events are made: the newest segment that begins at or before the first of them, and all within.
    """

    kind: ClassVar[str] = "events"
    begin: int
    end: int
    started_us: int
    segments: Segments


kinds(Slice, KINDS)
