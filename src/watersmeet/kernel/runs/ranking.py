"""The total order of the rows of a key: ORDER BY, then the row itself, so that no order of arrival shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import SortKey
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.arrays.ordering import order_keys, order_prefixes
from watersmeet.kernel.runs.groups import Ints

_HIGHEST: Final = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Ranking:
    """order: the rows, group by group, each group in its total order. groups: of each place in `order`, ascending.

    leads: the places whose row differs from the one before in its group or in a sort key (the first of its peers).
    """

    order: Ints
    groups: Ints
    leads: col.Mask


def rank(groups: Ints, arrays: Sequence[pa.Array], order: Sequence[SortKey]) -> Ranking:
    """The ranking of distinct rows by group, then `order`, then the other columns: ascending, NULLs last.

    arrays: all columns of the rows, floats in one form. Rows that are in `order` and in all columns with an order
    equal (arrays and structs have none, and '1 month' equals '30 days') stay as they are, so the rows of each
    group have to come in canonical order.
    """
    words = [groups]
    for key in order:
        words += _words(arrays[key.column], key)
    rows = np.lexsort(words[::-1])
    same = np.ones(max(0, len(rows) - 1), np.bool_)
    for word in words:
        ordered = word[rows]
        same &= ordered[1:] == ordered[:-1]
    leads = np.ones(len(rows), np.bool_)
    leads[1:] = ~same
    if same.any():
        rows = _settled(rows, leads, arrays, {key.column for key in order})
    return Ranking(rows, groups[rows], leads)


def prefixes(array: pa.Array, key: SortKey) -> Hashes:
    """Numbers in [0, 2^32) that never fall along the order of `key`; stable for ever."""
    valid = col.validity(array)
    rows = None if valid is None else np.flatnonzero(valid)
    found = order_prefixes(array if rows is None else col.gather(array, rows))
    if key.descending:
        found = _HIGHEST - found
    if rows is None:
        return found
    result = np.full(len(array), 0 if key.nulls_first else _HIGHEST, np.uint64)
    result[rows] = found
    return result


def leading(schema_types: Sequence[pa.DataType], order: Sequence[SortKey]) -> SortKey | None:
    """The key that decides first: that of `order`, else the first column that has an order."""
    if order:
        return order[0]
    return next((SortKey(i) for i, kind in enumerate(schema_types) if not kind.num_fields), None)


def _words(array: pa.Array, key: SortKey) -> list[Ints]:
    """Integers whose lexicographic order is that of `key`; equal ones mean equal values."""
    values = order_keys(array)
    if key.descending:
        values = ~values
    valid = col.validity(array)
    if valid is None:
        return [values]
    return [(valid if key.nulls_first else ~valid).astype(np.int64), np.where(valid, values, 0)]


def _settled(rows: Ints, leads: col.Mask, arrays: Sequence[pa.Array], done: set[int]) -> Ints:
    """Orders each stretch of peers by the columns that are not `done`."""
    tied = ~leads
    tied[:-1] |= tied[1:]
    places = np.flatnonzero(tied)
    members = rows[places]
    words: list[Ints] = [np.cumsum(leads[places])]
    for i, array in enumerate(arrays):
        if i not in done and not array.type.num_fields:
            words += _words(col.gather(array, members), SortKey(i))
    rows = rows.copy()
    rows[places] = members[np.lexsort(words[::-1])]
    return rows
