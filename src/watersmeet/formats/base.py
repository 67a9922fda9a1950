"""What decoders and encoders of messages have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """Messages of one partition of a topic, in the order of their offsets.

    keys, values: binary; NULL is a message without one (a tombstone has no value). offsets: int64, rising, with gaps.
    times_ms: milliseconds since 1970 (UTC), -1 where the message has none; None if nobody asked for them. headers:
    list<struct<key: string, value: binary>>, NULL for messages without; None if nobody asked for them.
    """

    topic: str
    partition: int
    keys: pa.BinaryArray
    values: pa.BinaryArray
    offsets: Numbers
    times_ms: Numbers | None
    headers: pa.ListArray | None = None

    def __len__(self) -> int:
        return len(self.offsets)


class Unreadable(NamedTuple):
    """A message that can't be decoded. place: its place in the batch."""

    place: int
    reason: str


@dataclass(frozen=True)
class Decoded:
    """The rows of messages.

    table: all columns of the relation that come from messages, by name, in the Arrow types of their SQL types. places:
    int64, not falling: for each row the place of its message in the batch. diff: int64: 1 for a row that is there now,
    -1 for one that is gone, of which only the columns of the primary key count; None: all are 1. unreadable: rising by
    place; these messages have no row. kept: list<string>: by row, the columns whose values the message lacks because
    they did not change; an empty list with diff -1: all rows are gone. None: all are NULL.
    """

    table: pa.Table
    places: Numbers
    diff: Numbers | None = None
    unreadable: Sequence[Unreadable] = ()
    kept: pa.ListArray | None = None


class Decoder(Protocol):
    """From messages to rows.

    Law: what it gives for a message depends on that message alone, and on schemas that never change once they have an
    id; a batch that is decoded again, or cut otherwise, gives the same rows.
    """

    def decode(self, messages: Messages) -> Decoded:
        """The rows of `messages`. Bad messages are `unreadable`, never an error.

        Raises OSError if a schema can't be fetched for now (it is tried again), an `Error` if it can't ever be used.
        """
