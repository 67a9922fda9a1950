"""What the footer of a Parquet file says, as far as it can be true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_BYTE: Final = 1 << 16
"""More rows than that for each byte of the file are a lie."""
UNREADABLE: Final = (pa.ArrowException, OSError, ValueError)
"""What Arrow raises for files that are damaged; ValueError also for names that are no UTF-8."""


@dataclass(frozen=True, slots=True)
class Footer:
    """rows, sizes: of each row group (sizes in bytes, uncompressed). names: of the file's columns."""

    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]


def read_footer(file: BinaryIO, size: int) -> Footer | None:
    """The footer of a file of `size` bytes, or None if it has no valid one."""
    if size < 12:
        return None
    file.seek(size - 4)
    if file.read(4) != b"PAR1":
        return None
    file.seek(0)
    try:
        return checked_footer(pq.read_metadata(pa.PythonFile(file, mode="r")), size)
    except UNREADABLE:
        return None


def checked_footer(metadata: Any, size: int) -> Footer | None:
    """The footer as Arrow decoded it, or None if its numbers contradict each other or the file's size in bytes.

    Column chunks are not looked at: `RowGroupMetaData.column` of pyarrow ends the process if the chunk's statistics of
    sizes are damaged (parquet::ParquetException, "Definition level histogram size mismatch"). Readers raise instead.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = tuple(group.num_rows for group in groups)
    sizes = tuple(group.total_byte_size for group in groups)
    names = tuple(metadata.schema.to_arrow_schema().names)
    if metadata.num_rows != sum(rows) or min((*rows, *sizes), default=0) < 0 or sum(rows) > size * ROWS_PER_BYTE:
        return None
    return Footer(rows, sizes, names)
