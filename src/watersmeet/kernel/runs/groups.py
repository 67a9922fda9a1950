"""Groups of changes by key: creating and ranking them, and finding them in a trace.

Also, for the keys that an epoch changes, the multiplicities of their rows before and after it, and the times of the
changes that caused them. The total order of a key's rows is ORDER BY, then the row itself, so that the order of arrival
never has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import SortKey
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import distinct, pieces
from watersmeet.kernel.arrays.hashing import (
    Hashes,
    hash_columns,
    is_bijective,
    order_keys,
    order_prefixes,
    positions_by_hash,
)
from watersmeet.kernel.runs.delta import Delta, canonical_rows, stretches

Ints = npt.NDArray[np.int64]
_PIECE_ROWS: Final = 1 << 20
_MOST_PACKED: Final = 1 << 62

#: From this many groups on, the ends of stretches are only searched where a hash occurs more than once.
_MANY_GROUPS: Final = 1 << 10

#: Hashes are sorted before a search unless falls among them are rarer than this.
_FEW_FALLS: Final = 64


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of some rows, by ascending hash of their keys.

    order: the rows, group by group. starts: where in `order` each group starts. hashes, keys: those of each group.
    """

    order: Ints
    starts: Ints
    hashes: Hashes
    keys: tuple[pa.Array, ...]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.starts)

    @cached_property
    def lengths(self) -> Ints:
        """The number of rows of each group."""
        return np.diff(self.starts, append=len(self.order))

    @cached_property
    def of_ordered(self) -> Ints:
        """The group of each row of `order`."""
        return np.repeat(np.arange(self.count), self.lengths)

    @cached_property
    def of_row(self) -> Ints:
        """The group of each row."""
        result = np.empty(len(self.order), np.int64)
        result[self.order] = self.of_ordered
        return result

    @cached_property
    def trusted(self) -> bool:
        """True if equal hashes alone prove equal keys."""
        return all(is_bijective(k.type) and k.null_count == 0 for k in self.keys) and len(self.keys) <= 1

    @cached_property
    def unique(self) -> bool:
        """True if no two groups have the same hash."""
        return not bool((self.hashes[1:] == self.hashes[:-1]).any())

    def find(self, hashes: Hashes) -> Iterator[tuple[Ints, Ints]]:
        """Each pair (group, index in `hashes`) with equal hashes, in pieces. `hashes` is sorted. The caller must
        compare the keys.
        """
        low = np.searchsorted(hashes, self.hashes)
        if self.count < _MANY_GROUPS or not len(hashes):
            high = np.searchsorted(hashes, self.hashes, side="right")
            yield from pieces(low, high - low, _PIECE_ROWS)
            return
        low[low == len(hashes)] = 0  # its hash is another one
        found = np.flatnonzero(hashes[low] == self.hashes)
        low, wanted = low[found], self.hashes[found]
        high = low + 1
        more = np.flatnonzero(hashes[np.minimum(high, len(hashes) - 1)] == wanted)
        high[more] = np.searchsorted(hashes, wanted[more], side="right")
        for index, rows in pieces(low, high - low, _PIECE_ROWS):
            yield found[index], rows

    def each(self, hashes: Hashes) -> Iterator[tuple[Ints, Ints]]:
        """Each pair (group, index in `hashes`) with equal hashes, in pieces. `hashes` are in any order; it is fastest
        if they consist of few sorted sequences. The caller must compare the keys.
        """
        if not self.unique:
            order = positions_by_hash(hashes)
            for owner, row in self.find(hashes[order]):
                yield owner, order[row]
            return
        falls = np.count_nonzero(hashes[1:] < hashes[:-1])
        order = np.arange(len(hashes)) if falls < len(hashes) // _FEW_FALLS else positions_by_hash(hashes)
        for start in range(0, len(hashes), _PIECE_ROWS):
            rows = order[start : start + _PIECE_ROWS]
            some = hashes[rows]
            owner = np.minimum(np.searchsorted(self.hashes, some), self.count - 1)
            met = self.hashes[owner] == some
            yield owner[met], rows[met]

    def same(self, group: Ints, keys: Sequence[pa.Array], rows: Ints, *, hashes_agree: bool = True) -> col.Mask:
        """For each pair of a group and a row of `keys`, whether the keys are equal.

        hashes_agree: whether all 64 bits of their hashes are known to be equal.
        """
        if hashes_agree and self.trusted and all(k.null_count == 0 for k in keys):
            return np.ones(len(group), np.bool_)
        return col.rows_equal(
            [col.gather(k, group) for k in self.keys], [col.gather(k, rows) for k in keys], len(group), as_key=True
        )

    def take(self, groups: Ints) -> tuple[Hashes, list[pa.Array]]:
        """The hashes and keys of some groups."""
        return self.hashes[groups], [col.gather(k, groups) for k in self.keys]


#: Texts of at least this many rows are hashed once each, if few of the first rows differ.
_MANY_ROWS: Final = 1 << 14

_FIRST_ROWS: Final = 1 << 10
_FEW_VALUES: Final = _FIRST_ROWS // 4
_MOST_VALUES: Final = 1 << 16


def group_rows(keys: Sequence[pa.Array], count: int) -> Groups:
    """Groups `count` rows by `keys`, which are in `key_form`."""
    if count >= _MANY_ROWS and len(keys) == 1 and col.is_bytes(keys[0].type):
        found = _group_few(keys[0])
        if found is not None:
            return found
    return group(keys, hash_columns(keys, count))


def _group_few(key: pa.Array) -> Groups | None:
    """The groups of rows by a column with few different values; None if it has many."""
    if len(key.slice(0, _FIRST_ROWS).unique()) > _FEW_VALUES:
        return None
    encoded = key.dictionary_encode(null_encoding="encode")
    values = encoded.dictionary
    if len(values) > _MOST_VALUES:
        return None
    hashes = hash_columns([values], len(values))
    by_hash = np.argsort(hashes)
    hashes = hashes[by_hash]
    if bool((hashes[1:] == hashes[:-1]).any()):
        return None
    ranks = np.empty(len(values), np.uint16)
    ranks[by_hash] = np.arange(len(values))
    of_row = ranks[encoded.indices.to_numpy()]
    order = np.argsort(of_row, kind="stable")  # a radix sort, because the numbers have 16 bits
    lengths = np.bincount(of_row, minlength=len(values))
    return Groups(order, np.cumsum(lengths) - lengths, hashes, (col.gather(values, by_hash),))


def group(keys: Sequence[pa.Array], hashes: Hashes) -> Groups:
    """Groups rows by `keys`, which are in `key_form`; `hashes` are their key hashes."""
    order = positions_by_hash(hashes)
    ordered = hashes[order]
    starts, _ = stretches(ordered)
    result = _groups(keys, ordered, order, starts)
    if result.trusted or len(starts) == len(order):
        return result
    later = np.ones(len(order), np.bool_)
    later[starts] = False
    places = np.flatnonzero(later)
    same = col.rows_equal(
        [col.gather(k, order[places]) for k in keys],
        [col.gather(k, order[places - 1]) for k in keys],
        len(places),
        as_key=True,
    )
    if same.all():
        return result
    return _settle(keys, ordered, order, result, distinct(result.of_ordered[places[~same]]))


def _groups(keys: Sequence[pa.Array], ordered: Hashes, order: Ints, starts: Ints) -> Groups:
    first = order[starts]
    return Groups(order, starts, ordered[starts], tuple(col.gather(k, first) for k in keys))


def _settle(keys: Sequence[pa.Array], ordered: Hashes, order: Ints, found: Groups, mixed: Ints) -> Groups:
    """Splits the groups `mixed`, in which different keys have the same hash: about one in 2^64 pairs of keys."""
    order = order.copy()
    begins = np.zeros(len(order), np.bool_)
    begins[found.starts] = True
    for g in mixed:
        start = int(found.starts[g])
        stop = start + int(found.lengths[g])
        part = order[start:stop]
        texts = [repr([k[int(row)].as_py() for k in keys]) for row in part]
        places = sorted(range(len(part)), key=texts.__getitem__)
        order[start:stop] = part[places]
        begins[start:stop] = [i == 0 or texts[p] != texts[places[i - 1]] for i, p in enumerate(places)]
    return _groups(keys, ordered, order, np.flatnonzero(begins))


def key_form(column: col.Column) -> pa.Array:
    """The column in a form in which equal values have equal bytes: floats in one form, intervals as whole months, days
    and nanoseconds.
    """
    array = col.flat(column)
    if not col.is_interval(array.type) or len(array) == 0:
        return col.one_form(array)
    days, nanos = col.normal_interval(array).T
    data = np.empty(len(array), np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")]))
    sign = np.sign(days)
    data["months"], data["days"], data["nanos"] = sign * (np.abs(days) // 30), sign * (np.abs(days) % 30), nanos
    valid = col.validity(array)
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, pa.py_buffer(data)])


#: One integer holds both counts of a row, so that one consolidation adds them.
_SHIFT: Final = np.int64(32)

_HALF: Final = np.int64(1 << 31)
_LOW: Final = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Touched:
    """Distinct rows in canonical order. before, after: their multiplicities, each from 0 to 2^31 - 1."""

    arrays: list[pa.Array]
    groups: Ints
    before: Ints
    after: Ints


def touched(old: Sequence[tuple[Ints, Delta]], change: tuple[Ints, Delta], hashes: Hashes) -> Touched:
    """Adds up the entries `old` and the changes, each as (group of each row, rows).

    hashes: those of the groups, in whose order the rows are returned.
    """
    pieces = [*old, change]
    groups = np.concatenate([owner for owner, _ in pieces])
    rows = Delta.concat([delta for _, delta in pieces])
    arrays = [col.one_form(c) for c in rows.columns.columns]
    weights = np.concatenate([*[delta.diff << _SHIFT for _, delta in old], change[1].diff])
    places, sums = canonical_rows(arrays, weights, hashes[groups], whole_row=False)
    diff = ((sums + _HALF) & _LOW) - _HALF
    before = (sums - diff) >> _SHIFT
    return Touched(col.gather_all(arrays, places), groups[places], before, before + diff)


#: Earlier than any time.
NEVER: Final = np.iinfo(np.int64).min


def times_us(column: col.Column) -> Ints:
    """A timestamp column as numbers, NULL as `NEVER`."""
    array = col.flat(column)
    valid = col.validity(array)
    words = col.words(array).astype(np.int64)
    return words if valid is None else np.where(valid, words, NEVER)


def timestamps(times: Ints, kind: pa.DataType) -> pa.Array:
    """The inverse of `times_us`."""
    return pa.array(times, pa.int64(), mask=times == NEVER).view(kind)


def greatest(rows: Sequence[col.Column], causes: Sequence[col.Column], times: Ints, count: int) -> Ints:
    """For each of `count` rows, the greatest of `times` among the causes with equal values in all columns, or `NEVER`.


    NULL equals NULL.
    """
    found = np.full(count, NEVER)
    if not len(times) or not count:
        return found
    if not rows:
        return np.full(count, times.max())
    causing = [key_form(c) for c in causes]
    groups = group(causing, hash_columns(causing, len(times)))
    best = np.maximum.reduceat(times[groups.order], groups.starts)
    keys = [key_form(c) for c in rows]
    for owner, row in groups.each(hash_columns(keys, count)):
        same = groups.same(owner, keys, row)
        found[row[same]] = best[owner[same]]
    return found


_HIGHEST: Final = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Ranking:
    """The order of rows within groups.

    order: the rows, group by group, each group in its total order. groups: for each position in `order` the row's
    group, ascending. leads: the mask of positions whose row differs from the previous one in its group or in a sort
    key, which are the first of their peers.
    """

    order: Ints
    groups: Ints
    leads: col.Mask


def rank(groups: Ints, arrays: Sequence[pa.Array], order: Sequence[SortKey]) -> Ranking:
    """The ranking of distinct rows by group, then `order`, then the other columns: ascending, NULLs last.

    arrays: all columns of the rows, floats in one form. Rows that are equal in `order` and in all ordered columns keep
    their order, so the rows of each group must be in canonical order. (Arrays and structs are not ordered, and '1
    month' equals '30 days'.)
    """
    packed, used = _packed(groups, arrays, order)
    rows = np.argsort(packed)
    ordered = packed[rows]
    leads = np.ones(len(rows), np.bool_)
    leads[1:] = ordered[1:] != ordered[:-1]
    if not leads.all():
        rows, leads = _divided(rows, leads, arrays, order[used:])
        if not leads.all():
            done = {key.column for key in order}
            others = [SortKey(i) for i, a in enumerate(arrays) if i not in done and not a.type.num_fields]
            rows, _ = _divided(rows, leads, arrays, others)
    return Ranking(rows, groups[rows], leads)


def first_rows(groups: Ints, arrays: Sequence[pa.Array], key: SortKey, most: int) -> Ints:
    """The positions, ascending, of the rows that may be among the first `most` of their group in any order that begins
    with `key`: all rows with an equal key are.
    """
    packed, used = _packed(groups, arrays, [key])
    if not used:
        return np.arange(len(groups))
    rows = np.argsort(packed)
    starts = np.flatnonzero(np.diff(groups[rows], prepend=-1))
    lengths = np.diff(starts, append=len(rows))
    last = packed[rows[starts + np.minimum(lengths, most) - 1]]
    found: Ints = np.sort(rows[packed[rows] <= np.repeat(last, lengths)])
    return found


def _packed(groups: Ints, arrays: Sequence[pa.Array], order: Sequence[SortKey]) -> tuple[Ints, int]:
    """(integers in the order of groups and then of the first sort keys, the number of these keys): of as many keys as
    fit into 64 bits. Strings and decimals are left to `_divided`, which compares only those of peers, unless they come
    first.
    """
    packed, size = groups, int(groups.max(initial=0)) + 1
    for used, key in enumerate(order if len(groups) else ()):
        kind = arrays[key.column].type
        if used and (col.is_bytes(kind) or pa.types.is_decimal(kind)):
            return packed, used
        found, bits = packed, size
        for word in _words(arrays[key.column], key):
            least = int(word.min())
            span = int(word.max()) - least + 1
            if bits * span >= _MOST_PACKED:
                return packed, used
            found, bits = found * span + (word - least), bits * span
        packed, size = found, bits
    return packed, len(order)


def _divided(rows: Ints, leads: col.Mask, arrays: Sequence[pa.Array], keys: Sequence[SortKey]) -> tuple[Ints, col.Mask]:
    """Orders each stretch of peers by further sort keys, and equal rows by their positions. Returns the new order and
    leads.
    """
    tied = ~leads
    tied[:-1] |= tied[1:]
    places = np.flatnonzero(tied)
    members = rows[places]
    words: list[Ints] = [np.cumsum(leads[places])]
    for key in keys:
        words += _words(col.gather(arrays[key.column], members), key)
    inner = np.lexsort([members, *words[::-1]])
    same = np.ones(len(places) - 1, np.bool_)
    for word in words:
        ordered = word[inner]
        same &= ordered[1:] == ordered[:-1]
    rows, leads = rows.copy(), leads.copy()
    rows[places], leads[places[1:]] = members[inner], ~same
    return rows, leads


def prefixes(array: pa.Array, key: SortKey) -> Hashes:
    """Numbers in [0, 2^32) that never decrease along the order of `key`; stable for ever."""
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
    """The first sort key: that of `order`, or else the first ordered column."""
    if order:
        return order[0]
    return next((SortKey(i) for i, kind in enumerate(schema_types) if not kind.num_fields), None)


def _words(array: pa.Array, key: SortKey) -> list[Ints]:
    """Integers whose lexicographic order is that of `key`; equal integers mean equal values."""
    values = order_keys(array)
    if key.descending:
        values = ~values
    valid = col.validity(array)
    if valid is None:
        return [values]
    return [(valid if key.nulls_first else ~valid).astype(np.int64), np.where(valid, values, 0)]
