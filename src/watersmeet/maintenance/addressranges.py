"""Networks of IP addresses as ranges that do not overlap, each with the row of the longest prefix that has it.

ClickHouse, "ip_trie" among the layouts of dictionaries.
"""

from __future__ import annotations

import binascii
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import AddressRanges
from watersmeet.errors import error
from watersmeet.expressions.lenient import DIGITS, address_sql, network_sql, rest_sql
from watersmeet.formats.scalars import evaluate
from watersmeet.values.types import VARCHAR, Field, Schema

NETWORK: Final = "~network"
FIRST: Final = "~first"
LAST: Final = "~last"
PLACES: Final[Schema] = tuple(Field(name, VARCHAR, nullable=False) for name in (NETWORK, FIRST, LAST))
"""The columns of ranges before those of the dictionary: `network_sql`, and `rest_sql` of both ends."""

_BITS: Final = 128
#: Addresses: rows of two numbers of 64 bits, the higher one first.
Addresses = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
#: The same in hexadecimal, in the same order.
Digits = npt.NDArray[np.bytes_]
_ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_KEY: Final = np.uint64(0xFFFF)
_ONE: Final = np.uint64(1)
#: The first address of IPv4, and the one behind the last.
_IPV4: Final = np.array([[0, 0xFFFF_0000_0000], [0, 0x1_0000_0000_0000]], np.uint64)
#: The bits behind the key, of an address of IPv4 and of another one.
_REST_4: Final = np.uint64(16)
_REST_6: Final = np.uint64(48)


def address_ranges(relation: AddressRanges, rows: pa.Table) -> pa.Table:
    """The content of `relation` that the rows of its source make: `PLACES`, and their columns.

    Of several rows of one network the last one counts. All addresses of a range have one key, so a prefix that is
    shorter than a key becomes many ranges. INVALID_VALUE for what is no network.
    """
    (column,) = relation.networks
    prefixes = rows.column(column)
    if not len(prefixes):
        return pa.table([pa.array([], pa.string())] * len(PLACES) + rows.columns, names=_names(rows))
    begins, ends, winners = _pieces(*_networks(relation, prefixes))
    begins, ends, pieces = _split(begins, ends)
    network, first = evaluate([_text(begins)], [network_sql("t0"), rest_sql("t0")])
    (last,) = evaluate([_text(ends)], [rest_sql("t0")])
    found = rows.take(pa.array(winners[pieces]))
    return pa.table([network, first, last, *found.columns], names=_names(rows))


def _names(rows: pa.Table) -> list[str]:
    return [*(c.name for c in PLACES), *rows.column_names]


def _networks(relation: AddressRanges, prefixes: pa.ChunkedArray) -> tuple[Addresses, Addresses, Ints]:
    """(first address, last address, bits of the prefix) of each network."""
    address, bits = "split_part(t0, '/', 1)", "CAST(TRY_CAST(split_part(t0, '/', 2) AS UTINYINT) AS BIGINT)"
    most = f"CASE WHEN contains({address}, ':') THEN {_BITS} ELSE 32 END"
    given = f"CASE WHEN NOT contains(t0, '/') THEN {most} WHEN {bits} <= {most} THEN {bits} END"
    length = f"CASE WHEN regexp_full_match(t0, '[^/]*(/[0-9]+)?') THEN {given} + {_BITS} - {most} END"
    digits, sizes = evaluate([prefixes], [address_sql(address), length])
    bad = pc.indices_nonzero(pc.or_(digits.is_null(), sizes.is_null()))
    if len(bad):
        raise error(
            "INVALID_VALUE",
            f'key "{prefixes[bad[0].as_py()].as_py()}" of dictionary "{relation.name}" is no network of IP addresses',
            hint="Layout IP_TRIE takes 10.1.0.0/16, 2001:db8::/32 and single addresses.",
        )
    lengths = sizes.to_numpy().astype(np.int64)
    mask = _mask(lengths)
    first = _addresses(np.frombuffer(digits.buffers()[2], f"S{DIGITS}", len(digits))) & mask
    return first, first | ~mask, lengths


def _mask(lengths: Ints) -> Addresses:
    """The bits of prefixes of these lengths."""
    halves = [np.clip(lengths - begin, 0, 64).astype(np.uint64) for begin in (0, 64)]
    return np.stack([np.where(h == 0, 0, _ALL << (np.uint64(64) - np.maximum(h, _ONE))) for h in halves], axis=1)


def _pieces(first: Addresses, last: Addresses, lengths: Ints) -> tuple[Addresses, Addresses, Ints]:
    """The ranges (first address, last address, which network has it by the longest prefix), in order."""
    is_end = (last == _ALL).all(axis=1)
    firsts, behind = _digits(first), _digits(_after(last))
    points = np.unique(np.concatenate([firsts, behind[~is_end], _digits(_IPV4)]))
    begin = np.searchsorted(points, firsts)
    end = np.where(is_end, len(points), np.searchsorted(points, behind))
    winners = np.full(len(points), -1, np.int64)
    for length in np.unique(lengths):  # networks of one length do not overlap, and longer ones are within
        found = np.flatnonzero(lengths == length)
        places, networks = _spread(begin[found], end[found] - begin[found])
        winners[places] = found[networks]
    there = np.flatnonzero(winners >= 0)
    begins = _addresses(points)
    ends = np.concatenate([_before(begins[1:]), np.full((1, 2), _ALL)])
    return begins[there], ends[there], winners[there]


def _split(begins: Addresses, ends: Addresses) -> tuple[Addresses, Addresses, Ints]:
    """The ranges cut where their keys change, and of which range each is. None is partly of IPv4."""
    is_four = (begins[:, 0] == 0) & (begins[:, 1] >= _IPV4[0, 1]) & (begins[:, 1] < _IPV4[1, 1])
    key, last_key = (np.where(is_four, n[:, 1] >> _REST_4 & _KEY, n[:, 0] >> _REST_6) for n in (begins, ends))
    counts = (last_key - key).astype(np.int64) + 1
    keys, pieces = _spread(key.astype(np.int64), counts)
    four, keys = is_four[pieces], keys.astype(np.uint64)
    high = np.where(four, 0, keys << _REST_6)
    low = np.where(four, _IPV4[0, 1] | keys << _REST_4, 0)
    rest_high = np.where(four, 0, (_ONE << _REST_6) - _ONE)
    rest_low = np.where(four, (_ONE << _REST_4) - _ONE, _ALL)
    of_key = np.stack([high, low], axis=1)
    to_key = np.stack([high | rest_high, low | rest_low], axis=1)
    is_first, is_last = keys == key[pieces], keys == last_key[pieces]
    return (
        np.where(is_first[:, None], begins[pieces], of_key),
        np.where(is_last[:, None], ends[pieces], to_key),
        pieces,
    )


def _spread(begin: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The numbers begin, begin + 1, … of each, as many as `counts` says; and of which each is."""
    of = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return begin[of] + offsets, of


def _after(addresses: Addresses) -> Addresses:
    low = addresses[:, 1] + _ONE
    return np.stack([addresses[:, 0] + (low == 0), low], axis=1)


def _before(addresses: Addresses) -> Addresses:
    low = addresses[:, 1] - _ONE
    return np.stack([addresses[:, 0] - (low == _ALL), low], axis=1)


def _digits(addresses: Addresses) -> Digits:
    return np.frombuffer(binascii.hexlify(addresses.astype(">u8").tobytes()), f"S{DIGITS}")


def _addresses(digits: Digits) -> Addresses:
    return np.frombuffer(binascii.unhexlify(digits.tobytes()), ">u8").astype(np.uint64).reshape(-1, 2)


def _text(addresses: Addresses) -> pa.Array:
    size = len(addresses)
    fixed = pa.Array.from_buffers(pa.binary(DIGITS), size, [None, pa.py_buffer(_digits(addresses).tobytes())])
    return fixed.cast(pa.binary()).cast(pa.string())
