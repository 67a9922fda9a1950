"""Reading files that are read as a whole: XML, and Avro's container files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from watersmeet.connectors.base.rows import DamagedError, FilePlace, Problems, gather, not_null_names
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows
from watersmeet.connectors.files.options import FileSpec, Format
from watersmeet.errors import Error
from watersmeet.formats.avropayloads import count_records, read_records
from watersmeet.formats.payloads import Read
from watersmeet.formats.valuetexts import Converted
from watersmeet.formats.xmltext import XmlReader
from watersmeet.values.types import Field

#: For the estimate: bytes that a row of XML has at least, and how much smaller compression makes it at most.
_XML_ROW_BYTES: Final = 4
_GZIP_FACTOR: Final = 1000


def document_rows(file: BinaryIO, form: Format, *, is_gzip: bool) -> int:
    """How many rows a file has; for XML no fewer than it has."""
    file.seek(0)
    if form == "avro":
        try:
            return count_records(file)
        except Exception:  # what is wrong with the file, its reader says
            return 1
    size = file.seek(0, 2)
    return max(1, size * (_GZIP_FACTOR if is_gzip else 1) // _XML_ROW_BYTES)


def read_document(
    file: BinaryIO, place: FilePlace, spec: FileSpec, requested: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a file. Raises DamagedError for a file that can't be read."""
    found = _read(file, place.name, spec)
    count = len(found.places)
    columns = [Converted(c.column) for c in found.columns] if spec.options.null_for_bad else found.columns
    rows = np.arange(count, dtype=np.int64)
    problems = Problems()
    wrong = problems.add_columns(spec.columns, columns, not_null_names(spec.columns, spec.key), rows)
    done = {f.name: c.column for f, c in zip(spec.columns, columns, strict=True)}
    done |= place.columns(requested, lambda: rows + 1, lambda: rows, count)
    if problems.reasons:
        problems.write(dead_letters, place.name, lambda row: row + 1, lambda _: "")
    return gather(requested, done, ~wrong if wrong.any() else None, rows)


def _read(file: BinaryIO, name: str, spec: FileSpec) -> Read:
    if spec.options.format == "avro":
        try:
            return read_records(file, spec.columns)
        except (OSError, Error):
            raise
        except Exception as cause:
            raise DamagedError(str(cause) or type(cause).__name__) from cause
    try:
        data = gzip.decompress(file.read()) if name.endswith(".gz") else file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
        raise DamagedError(str(cause)) from cause
    found = XmlReader(spec.columns, dict(spec.options.reader)).read(pa.array([data], pa.large_binary()))
    if found.reasons:
        raise DamagedError(found.reasons[0])
    return found
