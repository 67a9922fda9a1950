"""What reading slices of a source needs beside each slice, by kind of source: constant for the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog import MessageFormat
from watersmeet.serialization import kinds
from watersmeet.sources.fileoptions import FileOptions
from watersmeet.sources.kafka.options import KafkaOptions
from watersmeet.sources.lakes.options import LakeOptions
from watersmeet.sources.nexmarkevents import Settings
from watersmeet.types import Schema


@dataclass(frozen=True)
class SourceSpec:
    """Base."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class FileSpec(SourceSpec):
    """Of files. columns: all that the files have. key: the names of those of the primary key. parts: by further column,
    what it shows of the place of a row: of its file the `name` below the directory of the source, as `file` (of an
    object the whole name), as `base` (without directories), and the time at which it changed (`modified`); the `line`,
    and the `offset`: at which byte of the unpacked file it begins, or how many rows come before it where rows are not
    lines.
    """

    kind: ClassVar[str] = "file"
    columns: Schema
    key: tuple[str, ...]
    options: FileOptions
    parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DatagenSpec(SourceSpec):
    """Of generated rows. columns: all that were declared. options: those of the columns, without `fields.`. rate: rows
    a second.
    """

    kind: ClassVar[str] = "datagen"
    columns: Schema
    options: Mapping[str, str]
    rate: int


@dataclass(frozen=True)
class NexmarkSpec(SourceSpec):
    """Of Nexmark events. chosen: the kind of those that are rows; None: all, each in a column of its kind."""

    kind: ClassVar[str] = "nexmark"
    chosen: str | None
    settings: Settings


@dataclass(frozen=True)
class KafkaSpec(SourceSpec):
    """Of topics of Kafka. columns: all that come from messages. key: the names of those of the primary key.
    message_parts: as in `catalog.Input`.
    """

    kind: ClassVar[str] = "kafka"
    columns: Schema
    key: tuple[str, ...]
    options: KafkaOptions
    format: MessageFormat
    message_parts: Mapping[str, str]


@dataclass(frozen=True)
class LakeSpec(SourceSpec):
    """Of tables of lakes. columns: all that are read. key: the names of those of the primary key."""

    kind: ClassVar[str] = "lake"
    columns: Schema
    key: tuple[str, ...]
    options: LakeOptions


kinds(SourceSpec, {cls.kind: cls for cls in (FileSpec, DatagenSpec, NexmarkSpec, KafkaSpec, LakeSpec)})
