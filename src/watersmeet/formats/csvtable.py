"""Well-formed CSV as columns of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv


def csv_table(
    data: bytes, width: int, include: Sequence[int], *, delimiter: str, quote: str, null: str, newlines: bool
) -> tuple[pa.Table, list[tuple[int, int]]]:
    """(the columns `include` as strings, (number, fields) of the rows without `width` fields).

    quote: empty for none. null: what an unquoted field says that is NULL. newlines: there may be some in fields.
    """
    names = [f"f{i}" for i in range(width)]
    # Arrow reads no row of no column: the first one stands for the number of rows.
    included = [names[i] for i in include] or names[:1]
    if not data:
        return pa.table({n: pa.array([], pa.string()) for n in included}), []
    wrong: list[tuple[int, int]] = []

    def skip(row: Any) -> str:
        wrong.append((row.number - 1, row.actual_columns))
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter,
            quote_char=quote or False,
            double_quote=bool(quote),
            newlines_in_values=newlines,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=included,
            check_utf8=False,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[null],
        ),
    )
    return table, wrong
