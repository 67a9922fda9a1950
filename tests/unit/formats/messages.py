"""Messages for tests of decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.formats.decoders import open_decoder
from watersmeet.formats.payloads import Decoded, Messages
from watersmeet.values.types import Field, SqlType

Bytes = bytes | str | None


def _bytes(value: Bytes) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def messages(values: Sequence[Bytes], keys: Sequence[Bytes] | None = None, **more: Any) -> Messages:
    count = len(values)
    found = {
        "topic": "t",
        "partition": 3,
        "offsets": np.arange(100, 100 + 2 * count, 2),
        "times_ms": np.full(count, 1_700_000_000_123, np.int64),
        **more,
    }
    headers = found.pop("headers", None)
    if headers is not None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        pairs = [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers]
        headers = pa.array(pairs, kind)
    return Messages(
        keys=pa.array([_bytes(k) for k in (keys or [None] * count)], pa.binary()),
        values=pa.array([_bytes(v) for v in values], pa.binary()),
        headers=headers,
        **found,
    )


def columns(**types: SqlType) -> tuple[Field, ...]:
    return tuple(Field(name, kind) for name, kind in types.items())


def decode(
    batch: Messages,
    fields: Sequence[Field],
    form: MessageFormat,
    key: Sequence[str] = (),
    parts: Mapping[str, str] | None = None,
) -> Decoded:
    decoded = open_decoder(tuple(fields), key, form, parts or {}).decode(batch)
    decoded.table.validate(full=True)
    assert decoded.table.num_rows == len(decoded.places) or not fields
    return decoded


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    """Its rows with, if there is one, their diff."""
    found = [tuple(row.values()) for row in decoded.table.to_pylist()]
    if decoded.diff is None:
        return found
    return [(d, *row) for d, row in zip(decoded.diff.tolist(), found, strict=True)]


def reasons(decoded: Decoded) -> dict[int, str]:
    return {u.place: u.reason for u in decoded.unreadable}
