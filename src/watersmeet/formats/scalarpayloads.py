"""Payloads that are one value: bytes, a text, a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Encoding
from watersmeet.errors import error
from watersmeet.formats.convert import convert
from watersmeet.formats.payloads import Read, as_texts, cut_rows, nothing
from watersmeet.formats.scalars import Converted
from watersmeet.types import Field

_WIDTHS: Final[dict[str, int]] = {"int": 4, "long": 8}


class ScalarReader:
    """The one column of a relation: bytes as they are, a text in UTF-8, a big-endian int (4 bytes) or long (8).

    Source: Kafka's serializers of the same names.
    """

    def __init__(self, fields: Sequence[Field], encoding: Encoding) -> None:
        if len(fields) > 1:
            raise error(
                "CONNECTOR_OPTION",
                f"a message in {encoding.upper()} is one value, and there are {len(fields)} columns for it",
                detail="Columns: " + ", ".join(f'"{f.name}"' for f in fields) + ".",
            )
        self._fields = fields
        self._encoding = encoding

    def read(self, payloads: pa.BinaryArray) -> Read:
        everything = np.arange(len(payloads), dtype=np.int64)
        if not self._fields:
            return Read([], everything)
        kind = self._fields[0].type
        if self._encoding == "bytes" and kind.name == "bytea":
            return Read([Converted(payloads)], everything)
        if self._encoding in _WIDTHS:
            return self._integers(payloads)
        texts, is_text = as_texts(payloads)
        (found,) = convert([texts], [kind])
        reasons = {int(i): "encoding: not UTF-8" for i in np.flatnonzero(~is_text)}
        return cut_rows(Read([found], everything, reasons), is_text)

    def _integers(self, payloads: pa.BinaryArray) -> Read:
        width = _WIDTHS[self._encoding]
        sizes = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
        fits = sizes == width
        reasons = {int(i): f"{self._encoding}: {sizes[i]} bytes instead of {width}" for i in np.flatnonzero(~fits)}
        if not fits.any():
            return nothing(self._fields, reasons)
        fixed = payloads.filter(pa.array(fits)).cast(pa.binary(width))
        data = np.frombuffer(fixed.buffers()[1], f">i{width}")[fixed.offset : fixed.offset + len(fixed)]
        numbers = pa.array(data.astype(f"i{width}"))
        kind = self._fields[0].type
        found = Converted(numbers) if numbers.type == kind.arrow else convert([numbers.cast(pa.string())], [kind])[0]
        return Read([found], np.flatnonzero(fits), reasons)
