"""Functions that DuckDB lacks, over Arrow columns: hashes as ClickHouse combines them, digests and base58.

Expressions call them like functions of other languages, but they run in the process itself. If an argument is NULL, the
value is NULL.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.jsonscan import canonical, is_valid
from watersmeet.kernel.arrays import bytehashes as h
from watersmeet.kernel.arrays.bytehashes import Texts, Words
from watersmeet.values.calledfunctions import SLEEP

Failures = list[tuple[int, str]]
Hash = tuple[Words, ...]


def native(name: str, columns: Sequence[pa.Array], wait: Callable[[float], object]) -> tuple[pa.Array, Failures]:
    """The values of a function, and the rows that failed with the reason. name: the function's name in ClickHouse, or
    SLEEP. wait: waits for that many seconds, unless the query ends earlier.
    """
    missing = reduce(pc.or_, [c.is_null() for c in columns])
    values, failures = _sleep(columns[0], wait) if name == SLEEP else _FUNCTIONS[name](columns)
    values = pc.if_else(missing, pa.scalar(None, values.type), values)
    return values, [(i, reason) for i, reason in failures if not missing[i].as_py()]


def _sleep(seconds: pa.Array, wait: Callable[[float], object]) -> tuple[pa.Array, Failures]:
    """Empty texts, after the sum of the seconds of all rows."""
    total = float(np.maximum(pc.drop_null(seconds).to_numpy(), 0).sum())
    if total > 0:
        wait(min(total, threading.TIMEOUT_MAX))
    return pa.array([""] * len(seconds)), []


@dataclass(frozen=True)
class _Family:
    """How a hash treats texts, numbers (which may be refused) and further arguments."""

    texts: Callable[[Texts], Hash]
    combine: Callable[[Hash, Hash], Hash]
    bits: int = 64


def _one(function: Callable[[Texts], Words]) -> Callable[[Texts], Hash]:
    return lambda t: (function(t),)


def _by_64(one: Hash, other: Hash) -> Hash:
    return (h.int64(one[0]) ^ other[0],)


def _by_32(one: Hash, other: Hash) -> Hash:
    return (h.int32(one[0]) ^ other[0],)


def _by_city(one: Hash, other: Hash) -> Hash:
    return (h.city_pair(one[0], other[0]),)


def _by_itself(function: Callable[[Texts], Hash]) -> Callable[[Hash, Hash], Hash]:
    """Combines two hashes by the hash of their bytes."""
    return lambda one, other: function(Texts.of_words(*one, *other))


def _half_md5(t: Texts) -> Hash:
    return (np.ascontiguousarray(h.md5(t)[:, :8]).view(">u8")[:, 0].astype(np.uint64),)


_HASHES: Final = {
    "city_hash64": _Family(_one(h.city64), _by_city),
    "half_md5": _Family(_half_md5, _by_itself(_half_md5)),
    "murmur_hash2_32": _Family(_one(h.murmur2_32), _by_32, 32),
    "murmur_hash2_64": _Family(_one(h.murmur2_64), _by_64),
    "murmur_hash3_128": _Family(h.murmur3_128, _by_itself(h.murmur3_128), 128),
    "murmur_hash3_32": _Family(_one(h.murmur3_32), _by_32, 32),
    "murmur_hash3_64": _Family(_one(h.murmur3_64), _by_64),
    "sip_hash128": _Family(h.sip128, _by_itself(h.sip128), 128),
    "sip_hash64": _Family(_one(h.sip64), _by_itself(_one(h.sip64))),
    "xx_hash32": _Family(_one(h.xx32), _by_32, 32),
    "xx_hash64": _Family(_one(h.xx64), _by_city),
    "xxh3": _Family(_one(h.xxh3), _by_city),
}  # fmt: skip


def _hashed(family: _Family, columns: Sequence[pa.Array]) -> tuple[pa.Array, Failures]:
    found = reduce(family.combine, [_argument(family, c) for c in columns])
    if family.bits == 128:
        return _bytes(np.ascontiguousarray(np.stack(found, axis=1)).view(np.uint8)), []
    if family.bits == 32:
        return pa.array(found[0].astype(np.int64)), []
    return _unsigned(found[0]), []


def _argument(family: _Family, column: pa.Array) -> Hash:
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return family.texts(Texts.of(column))
    return (h.int64(_bits(column)),)


def _bits(column: pa.Array) -> Words:
    """The bits of numbers, without a sign, as words."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.uint64())
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    words: Words = values.view(np.dtype(f"u{values.itemsize}")).astype(np.uint64)
    return words


def _of_integer(function: Callable[[Words], Words], column: pa.Array) -> Words:
    if pa.types.is_decimal(column.type):
        return function(_bits(column))
    return function(column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))


def _unsigned(words: Words) -> pa.Array:
    return pa.array(words).cast(pa.decimal128(20, 0))


def _java(column: pa.Array) -> npt.NDArray[np.int32]:
    return h.java(Texts.of(column)).astype(np.uint32).view(np.int32)


def _bytes(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """A column of bytes, of equal length in all rows."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _plain(function: Callable[[pa.Array], pa.Array]) -> Callable[[Sequence[pa.Array]], tuple[pa.Array, Failures]]:
    return lambda columns: (function(columns[0]), [])


def _sha2(bits: int, column: pa.Array) -> pa.Array:
    return _bytes(h.sha2(Texts.of(column), bits))


# base58

_ALPHABET: Final = np.frombuffer(b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", np.uint8)
_DIGITS: Final = np.full(256, 58, np.int64)
_DIGITS[_ALPHABET] = np.arange(58)
#: Numbers are computed in limbs of 4 bytes or 5 digits.
_OF_BYTES: Final = (256, 4)
_OF_DIGITS: Final = (58, 5)
_LONGEST: Final = 4096


def _rebased(digits: npt.NDArray[np.int64], given: tuple[int, int], wanted: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Numbers in another base. digits: a row for each number, from its highest digit on."""
    (base, size), (new_base, new_size) = given, wanted
    count, width = digits.shape
    padded = np.pad(digits, ((0, 0), (-width % size, 0)))
    powers = base ** np.arange(size - 1, -1, -1)
    words = (padded.reshape(count, -1, size) @ powers).astype(np.uint64)
    limb, new_limb = np.uint64(base**size), np.uint64(new_base**new_size)
    needed = int(np.ceil(padded.shape[1] * np.log(base) / np.log(new_base) / new_size)) + 1
    limbs = np.zeros((needed, count), np.uint64)
    for place in range(words.shape[1]):
        carry = words[:, place]
        for i in range(needed):
            total = limbs[i] * limb + carry
            limbs[i], carry = total % new_limb, total // new_limb
    new_powers = (new_base ** np.arange(new_size - 1, -1, -1)).astype(np.uint64)
    spread = limbs[::-1].T[:, :, None] // new_powers % np.uint64(new_base)
    return spread.reshape(count, -1).astype(np.int64)


def _base58(column: pa.Array, *, decode: bool) -> tuple[pa.Array, Failures]:
    texts = Texts.of(column)
    too_long = texts.sizes > _LONGEST
    texts = Texts(texts.data, texts.starts, np.where(too_long, 0, texts.sizes))
    width = int(texts.sizes.max(initial=0))
    places = np.arange(-width, 0) + texts.sizes[:, None]
    found = np.where(places >= 0, texts.data[texts.starts[:, None] + np.maximum(places, 0)], 0)
    given, wanted = (_OF_DIGITS, _OF_BYTES) if decode else (_OF_BYTES, _OF_DIGITS)
    digits = np.where(places >= 0, _DIGITS[found], 0) if decode else found.astype(np.int64)
    wrong: npt.NDArray[Any] = np.any(digits >= given[0], axis=1)
    digits = np.where(wrong[:, None], 0, digits)
    zeros = np.where(places >= 0, digits == 0, True).cumprod(axis=1).sum(axis=1) - (width - texts.sizes)
    made = _rebased(digits, given, wanted)
    first = (made == 0).cumprod(axis=1).sum(axis=1)
    kept = np.arange(made.shape[1]) >= (first - zeros)[:, None]
    values = made.astype(np.uint8) if decode else _ALPHABET[made]
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values[kept])]
    kind = pa.binary() if decode else pa.string()
    failed = [*((int(i), "a text for base58 is too long") for i in np.flatnonzero(too_long))]
    failed += [(int(i), "invalid base58 text") for i in np.flatnonzero(wrong)]
    return pa.Array.from_buffers(kind, len(column), buffers), failed


def _documents(column: pa.Array) -> tuple[pa.Array, Failures]:
    """Texts as jsonb."""
    texts = column.cast(pa.string()).fill_null("null")
    valid = is_valid(texts)
    wrong = np.flatnonzero(~valid)
    made = canonical(pc.if_else(pa.array(valid), texts, pa.scalar(None, pa.string())))
    return made, [(int(i), "invalid input syntax for type jsonb") for i in wrong]


#: The first byte of values by their types, in the order of the types (PostgreSQL 17, 8.14.4 "jsonb Indexing").
_NULL, _STRING, _NUMBER, _BOOLEAN, _ARRAY, _OBJECT = b"\x01", b"\x02", b"\x03", b"\x04", b"\x10", b"\x11"
_COMPLEMENT: Final = bytes(255 - byte for byte in range(256))


def _json_order(column: pa.Array) -> pa.Array:
    """Bytes whose order is that of jsonb documents, each of which is computed once."""
    found = column.cast(pa.string()).dictionary_encode()
    keys = pa.array([_document_key(text) for text in found.dictionary.to_pylist()], pa.binary())
    return keys.take(found.indices)


def _document_key(text: str) -> bytes:
    value = json.loads(text, parse_float=Decimal)
    if isinstance(value, dict):
        return _value_key(value)
    # A document that is no object counts as an array of one element; an array is greater if the numbers are equal.
    members = value if isinstance(value, list) else [value]
    return _ARRAY + len(members).to_bytes(4) + bytes([isinstance(value, list)]) + b"".join(map(_value_key, members))


def _value_key(value: Any) -> bytes:
    if value is None:
        return _NULL
    if isinstance(value, str):
        return _STRING + value.encode() + b"\0"
    if isinstance(value, bool):
        return _BOOLEAN + bytes([value])
    if isinstance(value, list):
        return _ARRAY + len(value).to_bytes(4) + b"".join(map(_value_key, value))
    if isinstance(value, dict):
        pairs = sorted((len(key.encode()), key.encode(), member) for key, member in value.items())
        return _OBJECT + len(pairs).to_bytes(4) + b"".join(key + b"\0" + _value_key(member) for _, key, member in pairs)
    return _NUMBER + _number_key(Decimal(value))


def _number_key(value: Decimal) -> bytes:
    """Bytes in the order of numbers: the sign, the exponent of the first digit, and the digits."""
    sign, digits, _ = value.as_tuple()
    if not any(digits):
        return b"\x80"
    made = (value.adjusted() + (1 << 31)).to_bytes(4) + bytes(digits).rstrip(b"\0").translate(_DIGIT_BYTES) + b"\0"
    return b"\xc0" + made if not sign else b"\x40" + made.translate(_COMPLEMENT)


#: Digits as bytes above the one that ends a number.
_DIGIT_BYTES: Final = bytes(min(byte + 1, 255) for byte in range(256))

_FUNCTIONS: Final[dict[str, Callable[[Sequence[pa.Array]], tuple[pa.Array, Failures]]]] = {
    **{name: partial(_hashed, family) for name, family in _HASHES.items()},
    "base58_decode": lambda columns: _base58(columns[0], decode=True),
    "base58_encode": lambda columns: _base58(columns[0], decode=False),
    "hive_hash": _plain(lambda c: pa.array(_java(c) & np.int32(0x7FFFFFFF))),
    "int_hash32": _plain(lambda c: pa.array(_of_integer(h.int32, c).astype(np.int64))),
    "int_hash64": _plain(lambda c: _unsigned(_of_integer(h.int64, c))),
    "jsonb": lambda columns: _documents(columns[0]),
    "jsonb_order": _plain(_json_order),
    "java_hash": _plain(lambda c: pa.array(_java(c))),
    "md4": _plain(lambda c: _bytes(h.md4(Texts.of(c)))),
    **{f"sha{bits}": _plain(partial(_sha2, bits)) for bits in (224, 384, 512)},
}  # fmt: skip
