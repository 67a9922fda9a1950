"""Reading slices, in workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from watersmeet.errors import Error, error
from watersmeet.slices import (
    AsideSlice,
    DatagenSlice,
    FileSlice,
    JumpSlice,
    LakeSlice,
    MessageSlice,
    NexmarkSlice,
    RenamingSlice,
    Slice,
    SourceSlice,
    VersionSlice,
)
from watersmeet.sources.base import DeadLetterSink, SourceRows, Unavailable
from watersmeet.sources.datagen import read_datagen_slice
from watersmeet.sources.filerows import read_file_slice
from watersmeet.sources.kafka.rows import expect_messages, read_messages
from watersmeet.sources.lakes.rows import read_lake_slice
from watersmeet.sources.nexmark import read_nexmark_slice
from watersmeet.sources.specs import DatagenSpec, FileSpec, KafkaSpec, LakeSpec, NexmarkSpec, SourceSpec
from watersmeet.types import Field


def expect(pieces: Iterable[Slice], specs: Mapping[str, SourceSpec]) -> None:
    """Says which slices are read next, in this order, so that what has to be fetched comes meanwhile.

    specs: by relation.
    """
    topics: dict[str, list[MessageSlice]] = {}
    for piece in pieces:
        if isinstance(piece, MessageSlice):
            topics.setdefault(piece.relation, []).append(piece)
    for relation_id, ranges in topics.items():
        spec = specs[relation_id]
        assert isinstance(spec, KafkaSpec)
        with suppress(Unavailable, Error):  # reading says so, and of which source
            expect_messages(ranges, spec)


def read_slice(
    piece: SourceSlice, spec: SourceSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice: `columns` by name.

    spec: `Source.spec()` of the slice's source. Which rows are set aside never depends on `columns`,
    so views that read different columns of a source see the same rows. Raises OSError if a
    file can't be read for now, `base.Unavailable` if a broker or schema registry can't be reached, RUNTIME_UNAVAILABLE
    if the directory of a file source is not reachable.
    """
    if isinstance(piece, (FileSlice, AsideSlice, RenamingSlice)) and isinstance(spec, FileSpec):
        return read_file_slice(piece, spec, columns, dead_letters)
    if isinstance(piece, DatagenSlice) and isinstance(spec, DatagenSpec):
        return read_datagen_slice(piece, spec, columns)
    if isinstance(piece, NexmarkSlice) and isinstance(spec, NexmarkSpec):
        return read_nexmark_slice(piece, spec, columns)
    if isinstance(piece, (MessageSlice, JumpSlice)) and isinstance(spec, KafkaSpec):
        return read_messages(piece, spec, columns, dead_letters)
    if isinstance(piece, (LakeSlice, VersionSlice)) and isinstance(spec, LakeSpec):
        return read_lake_slice(piece, spec, columns, dead_letters)
    raise error("INTERNAL_ERROR", f"there is no reader for slices of kind {piece.kind} of a {spec.kind} source")
