"""What captured changes mean for a table: the last row of each key, with the values that changes left as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.formats.writers import row_codes

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KeyedChanges:
    """Changes of one table in any order, by key.

    gone: keys of rows that go; gone_at: when. written: rows that come, all columns; written_at: when. Times are places
    in the order of all changes: that a change takes a row away is directly before the row that it writes. kept: by
    column, which rows have the value of the row that they replace.
    """

    key: tuple[str, ...]
    gone: pa.Table
    gone_at: Numbers
    written: pa.Table
    written_at: Numbers
    kept: Mapping[str, Mask]

    def keys(self) -> pa.Table:
        """All keys, some more than once."""
        return pa.concat_tables([self.gone, self.written.select(list(self.key))])


def last_rows(changes: KeyedChanges, there: pa.Table) -> tuple[pa.Table, dict[str, Mask]]:
    """(the rows after the changes, of the keys that were changed; by column, the written rows whose kept value is
    missing, as the row that they replace is).

    there: the rows with these keys before. A row with a missing value is not among those after the changes.
    """
    key = list(changes.key)
    codes = row_codes(pa.concat_tables([there.select(key), changes.keys()]))
    before, gone, written = there.num_rows, len(changes.gone_at), len(changes.written_at)
    # Events: the rows that were there, those that go, those that come.
    times = np.concatenate([np.full(before, -1, np.int64), changes.gone_at, changes.written_at])
    order = np.lexsort((times, codes))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = codes[order][1:] != codes[order][:-1]
    comes = np.arange(len(order)) >= before + gone
    last = np.sort(order[is_last & comes[order]]) - (before + gone)
    rows, missing = changes.written, dict[str, Mask]()
    if any(mask.any() for mask in changes.kept.values()):
        sources = _sources(codes, order, times, before, gone, written)
        rows, missing = _filled(changes, there, sources)
        for mask in missing.values():
            last = last[~mask[last]]
    return rows.take(pa.array(last)), missing


def _sources(codes: Numbers, order: Numbers, times: Numbers, before: int, gone: int, written: int) -> Numbers:
    """Of each row that comes, the row that it replaces: by its number among those that were there and those that come;
    -1 if there is none.
    """
    previous = np.full(len(order), -1, np.int64)
    same = codes[order][1:] == codes[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    # A change that names the old row replaces that one, whatever key it has.
    goes, comes = np.arange(before, before + gone), np.arange(before + gone, before + gone + written)
    if gone:
        at = np.argsort(times[goes])
        place = np.searchsorted(times[goes][at], times[comes] - 1)
        inside = np.minimum(place, gone - 1)
        named = (place < gone) & (times[goes][at][inside] == times[comes] - 1)
        previous[comes[named]] = previous[goes[at[inside[named]]]]
    found = previous[comes]
    result = np.full(written, -1, np.int64)
    result[(found >= 0) & (found < before)] = found[(found >= 0) & (found < before)]
    result[found >= before + gone] = found[found >= before + gone] - gone
    return result


def _filled(changes: KeyedChanges, there: pa.Table, sources: Numbers) -> tuple[pa.Table, dict[str, Mask]]:
    """(the rows that come, with the values that they keep; by column, which rows lack such a value)."""
    before, missing = there.num_rows, dict[str, Mask]()
    rows = changes.written
    for name, mask in changes.kept.items():
        if not mask.any():
            continue
        points = np.arange(before + rows.num_rows)
        points[before:][mask] = sources[mask]
        while True:
            further = np.where(points >= 0, points[np.maximum(points, 0)], -1)
            if np.array_equal(further, points):
                break
            points = further
        points = points[before:]
        if (points < 0).any():
            missing[name] = points < 0
        both = pa.chunked_array([*there.column(name).chunks, *rows.column(name).chunks], rows.schema.field(name).type)
        values = both.take(pa.array(np.maximum(points, 0), mask=points < 0))
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
    return rows, missing


def concatenated(masks: Sequence[Mask]) -> Mask:
    """Masks one after the other."""
    return np.concatenate(masks) if masks else np.zeros(0, np.bool_)
