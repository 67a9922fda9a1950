"""The decoder of a format."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.errors import error
from watersmeet.formats.base import Decoded, Decoder, Messages, Unreadable
from watersmeet.formats.convert import json_objects
from watersmeet.types import Schema


class _Json:
    """Objects of JSON, one a message; a field that can't be read is NULL."""

    def __init__(self, columns: Schema) -> None:
        self._columns = columns

    def decode(self, messages: Messages) -> Decoded:
        names = [c.name for c in self._columns]
        try:
            texts = messages.values.cast(pa.string())
        except pa.ArrowInvalid:
            texts = pa.array([_text(v) for v in messages.values.to_pylist()], pa.string())
        done, wrong = json_objects(texts, names, [c.type for c in self._columns])
        return Decoded(
            pa.table([d.column for d in done], names=names),
            np.flatnonzero(~wrong),
            None,
            [Unreadable(place, "it is no JSON object") for place in np.flatnonzero(wrong).tolist()],
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def open_decoder(
    columns: Schema,
    primary_key: tuple[str, ...],  # noqa: ARG001
    form: MessageFormat,
    message_parts: Mapping[str, str],
) -> Decoder:
    """The decoder for a relation. FEATURE_NOT_SUPPORTED for a format that can't be read."""
    if form.rows != "plain" or form.encoding != "json" or message_parts:
        raise error("FEATURE_NOT_SUPPORTED", f"messages of format {form.rows} {form.encoding} are not supported")
    return _Json(columns)
