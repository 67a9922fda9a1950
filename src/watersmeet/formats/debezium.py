"""Debezium's envelopes: what a row was before a change, and is after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.errors import error
from watersmeet.formats.payloads import Read
from watersmeet.types import Field


@dataclass(frozen=True)
class Changes:
    """ops: of each payload the letter of its change, empty for one that changes no row. before, after: rows, of those
    payloads that have them. reasons: by place, why a payload can't be read.
    """

    ops: npt.NDArray[Any]
    before: Read
    after: Read
    reasons: Mapping[int, str] = field(default_factory=dict)


class EnvelopeReader(Protocol):
    """From payloads to changes."""

    def read(self, payloads: pa.BinaryArray) -> Changes:
        """The changes that payloads say, of which none is NULL. Raises as `Decoder.decode` does."""


def open_envelope_reader(fields: Sequence[Field], form: MessageFormat) -> EnvelopeReader:
    """A reader of envelopes. Raises as `open_decoder` does."""
    raise error(
        "FEATURE_NOT_SUPPORTED",
        f"Debezium's messages in {form.encoding.upper()} can't be read into {len(fields)} columns",
    )
