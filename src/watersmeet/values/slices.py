"""Slices: the pieces of input that epochs read, one class for each kind.

The driver cuts slices, tasks read them; intents, jobs and commits store them by `serialization`. A slice always
contains the same rows with the same ordinals, or the same dead letters. Slices of the database's own files are read by
`runtime.slices`, others by `connectors.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from watersmeet.values.serialization import kinds

Print = tuple[int, str]
"""A fingerprint: (length in bytes, hash of the bytes)."""

Aside = Literal["vanished", "damaged", "replaced"]
"""The reason why a file is a dead letter: it was deleted, it is incomplete or of another format, or another file has
its name.
"""

Segments = tuple[tuple[int, int], ...]
"""(first event, its time in microseconds). The following events have the rate of the source."""

#: The classes of slices by their kind.
KINDS: Final[dict[str, type[Slice]]] = {}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The base class of slices, which are pieces of input.

    relation: the id of the relation of its rows. rows, size_bytes: estimates; rows is never too low. seq: its position
    in the epoch's order of arrival, set by the intent; all changes of one transaction to a relation have the same.
    late_below_us: in a fill, the watermark below which the live epoch that read the slice dropped rows.
    """

    kind: ClassVar[str]
    relation: str
    rows: int = 0
    size_bytes: int = 0
    seq: int = 0
    late_below_us: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Registers a class by its `kind`."""
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            assert cls.kind not in KINDS, f"two kinds of slices are called {cls.kind}"
            KINDS[cls.kind] = cls


@dataclass(frozen=True, kw_only=True)
class ChangeSlice(Slice):
    """A blob with changes of a relation by one commit, or with rows of a snapshot.

    file, offset_bytes: as in `BlobRef`. first: the number of earlier rows of the change, 0 in a snapshot. part: the
    rows of the blob that the slice has, from the first to before the second number; None for all. earlier: whether the
    rows are earlier content, which only operators that begin again read (`Recompute`).
    """

    kind: ClassVar[str] = "change"
    file: str
    offset_bytes: int
    first: int = 0
    part: tuple[int, int] | None = None
    earlier: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceSlice(Slice):
    """The base class of the slices of connectors.

    ordinal: 0, 1, 2 … over the life of the source, in the order of arrival; histories count separately.
    """

    ordinal: int = 0

    def at(self, ordinal: int) -> Self:
        """The same slice with the given ordinal."""
        return replace(self, ordinal=ordinal)


class FileVersion(NamedTuple):
    """Identifies an unchanged file. inode: 0 if unknown."""

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, kw_only=True)
class FileSlice(SourceSlice):
    """Part of a file.

    path: relative to the source's directory. version: that of the file when the slice was cut. begin, end: bytes of a
    text file, row groups of a Parquet file, 0 and 1 for a gzip file. line: the number of the first line (Parquet: row),
    from 1. lines: the number of newlines (Parquet: rows). total: the number of row groups of a Parquet file, 1 for a
    gzip file; None if the file may grow. head, tail: fingerprints of the first and the last bytes up to `end`, or of
    the whole file if `total` is set; the head of an object is its size and its tag. header: the names in the header of
    a CSV file. lacks: in a file's first slice, the declared columns that the file lacks. unterminated: whether the last
    line has no newline. long: whether the slice is a line that exceeds the size limit of a record. again: the number of
    earlier reads of the whole file.
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
    """A whole file as a dead letter, without rows. again: as in `FileSlice`."""

    kind: ClassVar[str] = "aside"
    path: str
    version: FileVersion
    reason: Aside
    lost_bytes: int
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class RenamingSlice(SourceSlice):
    """Renamed files of a source, without rows. names: (old, new), sorted."""

    kind: ClassVar[str] = "renaming"
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class MessageSlice(SourceSlice):
    """The committed messages of a partition with offsets in [begin, end), which may have gaps.

    topic_id: the brokers' id of the topic.
    """

    kind: ClassVar[str] = "messages"
    #: The ordinal of a row that is a change (`SourceRows.kept`) is the number of its message times this, plus its
    #: number in the message.
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
    """A gap of lost messages in a topic: no rows, a dead letter for each partition.

    topic_id: the new id of the topic. offsets: (partition, next offset before the gap, next offset after the gap),
    sorted; for a recreated topic all partitions, each with the offset of its first message as the last number.
    """

    kind: ClassVar[str] = "jump"
    topic: str
    topic_id: str
    reason: Literal["expired", "recreated"]
    offsets: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class LogSlice(SourceSlice):
    """The messages of a shard of a stream after the position `after` and up to `upto`, both as its system writes them.

    stream_id: the id of the stream, which differs from that of a later one with the same name. after: empty for the
    first message that exists. rows: the exact number of messages if the system reports it, else the maximum.
    """

    kind: ClassVar[str] = "log"
    stream: str
    stream_id: str
    shard: int
    after: str
    upto: str


class LakeFile(NamedTuple):
    """A data file of a lake table. path: relative to the table, or a URL. values: (partition column, its value in all
    rows as text, None for NULL).
    """

    path: str
    size_bytes: int
    values: tuple[tuple[str, str | None], ...] = ()


LakeRole = Literal["removed", "deleted", "added", "inserted"]
"""The use of a file in a version of a lake table: all its rows are removed or added, or it is a file of changes, which
marks rows as deleted or inserted.
"""


@dataclass(frozen=True, kw_only=True)
class LakeSlice(SourceSlice):
    """The row groups [begin, end), of `total`, of a data file in a version of a lake table.

    version: its number, or the id of the snapshot. print: the fingerprint of its entry in the log; empty if unknown.
    line: the number of the first row, from 1.
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
    """The end of a version of a lake table, without rows. print: as in `LakeSlice`.

    left, came: files that it removed and added without changing rows, as compaction does. skipped: whether it was not
    read because it removes rows.
    """

    kind: ClassVar[str] = "version"
    version: int
    print: str
    left: tuple[str, ...] = ()
    came: tuple[LakeFile, ...] = ()
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class EventSlice(SourceSlice):
    """The events [begin, end) of a generator. started_us: the start of the source.

    segments: the times of the events, as the last segment that begins at or before the first event, and all later ones.
    """

    kind: ClassVar[str] = "events"
    begin: int
    end: int
    started_us: int
    segments: Segments


kinds(Slice, KINDS)
