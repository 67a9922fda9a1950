"""Hash functions of texts, as other systems define them, vectorized over the rows of an Arrow column.

Each function computes all rows at once: rows are grouped by the length classes of the algorithm, and long texts are
read block by block over the rows that still have blocks. Unlike `hashing`, nothing that is stored depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import isqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Words of 64 bits without a sign; products and sums wrap.
Words = npt.NDArray[Any]
_EIGHT: Final = np.arange(8)
#: The number of bytes after the last text that an algorithm may read.
_MARGIN: Final = 64


class Texts:
    """The bytes of a column of texts: `data`, and the first byte and the length of each text."""

    def __init__(self, data: Words, starts: Words, sizes: Words) -> None:
        self.data, self.starts, self.sizes = data, starts, sizes

    @staticmethod
    def of(column: pa.Array) -> Texts:
        """The texts of a column of type string or binary; a NULL is an empty text."""
        _, offsets, data = column.cast(pa.binary()).buffers()
        places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        return Texts(np.concatenate([found, np.zeros(_MARGIN, np.uint8)]), places[:-1], np.diff(places))

    @staticmethod
    def of_words(*words: npt.NDArray[Any]) -> Texts:
        """Texts that are the bytes of one word, or several, for each row."""
        rows = np.stack(words, axis=1)
        count, size = len(rows), rows.shape[1] * rows.itemsize
        data = np.concatenate([np.ascontiguousarray(rows).view(np.uint8).reshape(-1), np.zeros(_MARGIN, np.uint8)])
        return Texts(data, np.arange(count) * size, np.full(count, size))

    def take(self, rows: npt.NDArray[np.int64]) -> Texts:
        """The texts of some rows."""
        return Texts(self.data, self.starts[rows], self.sizes[rows])

    @property
    def lengths(self) -> Words:
        """The lengths as words."""
        return self.sizes.astype(np.uint64)

    def word(self, place: Any) -> Words:
        """Eight bytes from a place of each text on; negative places count from its end."""
        words: Words = self.data[self._at(place)[:, None] + _EIGHT].view("<u8")[:, 0]
        return words

    def half(self, place: Any) -> Words:
        """Four bytes from a place of each text on, as a word."""
        words: Words = self.data[self._at(place)[:, None] + _EIGHT[:4]].view("<u4")[:, 0].astype(np.uint64)
        return words

    def byte(self, place: Any) -> Words:
        """One byte of each text, as a word."""
        return self.data[self._at(place)].astype(np.uint64)

    def _at(self, place: Any) -> Words:
        from_end = isinstance(place, int) and place < 0
        places: Words = self.starts + (self.sizes + place if from_end else place)
        return places


def _by_length(texts: Texts, *classes: tuple[int, Callable[[Texts], Words]]) -> Words:
    """The values of the function of each text's length class. classes: the greatest length, and the function."""
    values, lowest = np.empty(len(texts.sizes), np.uint64), 0
    for greatest, function in classes:
        rows = np.flatnonzero((texts.sizes >= lowest) & (texts.sizes <= greatest))
        if rows.size:
            values[rows] = function(texts.take(rows))
        lowest = greatest + 1
    return values


_ANY: Final = 1 << 62


def _blocks(counts: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """For each number of a block the rows that have one. counts: the number of blocks of each row."""
    for block in range(int(counts.max(initial=0))):
        yield block, np.flatnonzero(counts > block)


def _right(x: Words, bits: int) -> Words:
    return (x >> bits) | (x << (64 - bits))


def _left(x: Words, bits: int) -> Words:
    return _right(x, 64 - bits)


def _mixed(x: Words, *steps: int) -> Words:
    """`x ^ (x >> n)` and a multiplication, in turn. steps: shifts and factors."""
    for shift, factor in zip(steps[::2], [*steps[1::2], 1], strict=False):
        x = (x ^ (x >> shift)) * np.uint64(factor)
    return x


def _u32(x: Words) -> Words:
    return x & 0xFFFFFFFF


# CityHash 1.0.2, the version of ClickHouse

_K0: Final = np.uint64(0xC3A5C85C97CB3127)
_K1: Final = np.uint64(0xB492B66FBE98F273)
_K2: Final = np.uint64(0x9AE16A3B2F90404F)
_K3: Final = np.uint64(0xC949D7C7509E6557)
_CITY_FACTOR: Final = np.uint64(0x9DDFEA08EB382D69)


def city_pair(low: Words, high: Words) -> Words:
    """The hash of 128 bits by CityHash, with which ClickHouse combines hashes."""
    a = _mixed((low ^ high) * _CITY_FACTOR, 47)
    return _mixed((high ^ a) * _CITY_FACTOR, 47, int(_CITY_FACTOR))


def _city_short(t: Texts) -> Words:
    z = t.lengths + (t.byte(-1) << 2)
    y = t.byte(0) + (t.byte(t.sizes >> 1) << 8)
    return _mixed(y * _K2 ^ z * _K3, 47, int(_K2))


def _city_8(t: Texts) -> Words:
    return city_pair(t.lengths + (t.half(0) << 3), t.half(-4))


def _city_16(t: Texts) -> Words:
    last, shift = t.word(-8), t.lengths
    moved = last + shift
    return city_pair(t.word(0), (moved >> shift) | (moved << (np.uint64(64) - shift))) ^ last


def _city_32(t: Texts) -> Words:
    a, b, c, d = t.word(0) * _K1, t.word(8), t.word(-8) * _K2, t.word(-16) * _K0
    return city_pair(_right(a - b, 43) + _right(c, 30) + d, a + _right(b ^ _K3, 20) - c + t.lengths)


def _city_64(t: Texts) -> Words:
    def half(a: Words, z: Words, second: Words, third: Words) -> tuple[Words, Words]:
        b, c = _right(a + z, 52), _right(a, 37)
        a = a + second
        c = c + _right(a, 7)
        a = a + third
        return a + z, b + _right(a, 31) + c

    vf, vs = half(t.word(0) + (t.lengths + t.word(-16)) * _K0, t.word(24), t.word(8), t.word(16))
    wf, ws = half(t.word(16) + t.word(-32), t.word(-8), t.word(-24), t.word(-16))
    r = _mixed((vf + ws) * _K2 + (wf + vs) * _K0, 47)
    return _mixed(r * _K0 + vs, 47, int(_K2))


def _city_weak(t: Texts, place: Any, a: Words, b: Words) -> tuple[Words, Words]:
    w, x, y, z = (t.word(place + i) for i in (0, 8, 16, 24))
    a = a + w
    b = _right(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + _right(a, 44) + c


def _city_long(t: Texts) -> Words:
    x, y = t.word(0), t.word(-16) ^ _K1
    v = _city_weak(t, t.sizes - 64, t.lengths, y)
    w = _city_weak(t, t.sizes - 32, t.lengths * _K1, np.full_like(x, _K0))
    z = (t.word(-56) ^ _K0) + _mixed(v[1], 47) * _K1
    state: Any = np.stack([_right(z + x, 39) * _K1, _right(y, 33) * _K1, z, *v, *w])
    for block, rows in _blocks((t.sizes - 1) >> 6):
        part, at = t.take(rows), block * 64
        x, y, z, v0, v1, w0, w1 = state[:, rows]
        x = _right(x + y + v0 + part.word(at + 16), 37) * _K1 ^ w1
        y = _right(y + v1 + part.word(at + 48), 42) * _K1 ^ v0
        z = _right(z ^ w0, 33)
        v = _city_weak(part, at, v1 * _K1, x + w0)
        w = _city_weak(part, at + 32, z + w1, y)
        state[:, rows] = np.stack([z, y, x, *v, *w])
    x, y, z, v0, v1, w0, w1 = state
    return city_pair(city_pair(v0, w0) + _mixed(y, 47) * _K1 + z, city_pair(v1, w1) + x)


def city64(t: Texts) -> Words:
    """CityHash64 1.0.2."""
    return _by_length(
        t, (0, lambda p: np.full(len(p.sizes), _K2)), (3, _city_short), (8, _city_8), (16, _city_16), (32, _city_32),
        (64, _city_64), (_ANY, _city_long),
    )  # fmt: skip


# SipHash-2-4 with the key 0


def sip(t: Texts) -> tuple[Words, Words, Words, Words]:
    """The four words of the final state of SipHash."""
    keys = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    state = np.repeat(np.array(keys, np.uint64)[:, None], len(t.sizes), axis=1)

    def rounds(rows: Any, count: int) -> None:
        a, b, c, d = state[:, rows]
        for _ in range(count):
            a, c = a + b, c + d
            b, d = _left(b, 13) ^ a, _left(d, 16) ^ c
            a, c = _left(a, 32) + d, c + b
            d, b = _left(d, 21) ^ a, _left(b, 17) ^ c
            c = _left(c, 32)
        state[:, rows] = np.stack([a, b, c, d])

    for block, rows in _blocks(t.sizes >> 3):
        word = t.take(rows).word(block * 8)
        state[3, rows] ^= word
        rounds(rows, 2)
        state[0, rows] ^= word
    everywhere = slice(None)
    left = t.sizes & 7
    word = (t.word(t.sizes - left) & _tail_mask(left)) | (t.lengths << 56)
    state[3] ^= word
    rounds(everywhere, 2)
    state[0] ^= word
    state[2] ^= 0xFF
    rounds(everywhere, 4)
    a, b, c, d = state
    return a, b, c, d


_MASKS: Final = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)


def _tail_mask(count: npt.NDArray[np.int64]) -> Words:
    """The mask of the first bytes of a word."""
    return _MASKS[count]


def sip64(t: Texts) -> Words:
    """SipHash-2-4, 64 bits."""
    a, b, c, d = sip(t)
    return a ^ b ^ c ^ d


def sip128(t: Texts) -> tuple[Words, Words]:
    """ClickHouse's variant of SipHash of 128 bits."""
    a, b, c, d = sip(t)
    return a ^ b, c ^ d


# xxHash

_P32: Final = (0, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_P64: Final = tuple(
    map(np.uint64, (0, 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                    0x27D4EB2F165667C5)))  # fmt: skip


def _left32(x: Words, bits: int) -> Words:
    return _u32((x << bits) | (x >> (32 - bits)))


def xx32(t: Texts) -> Words:
    """XXH32 with the seed 0."""
    lanes = np.array([_P32[1] + _P32[2], _P32[2], 0, -_P32[1]], np.int64).astype(np.uint64)
    state = _u32(np.repeat(lanes[:, None], len(t.sizes), axis=1))
    for block, rows in _blocks(t.sizes >> 4):
        part = t.take(rows)
        for lane in range(4):
            added = state[lane, rows] + part.half(block * 16 + lane * 4) * _P32[2]
            state[lane, rows] = _u32(_left32(_u32(added), 13) * _P32[1])
    a, b, c, d = state
    merged = _left32(a, 1) + _left32(b, 7) + _left32(c, 12) + _left32(d, 18)
    value = _u32(np.where(t.sizes >= 16, merged, np.uint64(_P32[5])) + t.lengths)
    done = t.sizes & ~15
    for block, rows in _blocks((t.sizes & 15) >> 2):
        added = value[rows] + t.take(rows).half(done[rows] + block * 4) * _P32[3]
        value[rows] = _u32(_left32(_u32(added), 17) * _P32[4])
    for block, rows in _blocks(t.sizes & 3):
        added = value[rows] + t.take(rows).byte((t.sizes[rows] & ~3) + block) * _P32[5]
        value[rows] = _u32(_left32(_u32(added), 11) * _P32[1])
    value = _u32(_mixed(value, 15, _P32[2]))
    value = _u32(_mixed(value, 13, _P32[3]))
    return _mixed(value, 16)


def _xx_round(lane: Words, word: Words) -> Words:
    return _left(lane + word * _P64[2], 31) * _P64[1]


def xx64(t: Texts) -> Words:
    """XXH64 with the seed 0."""
    zero = np.zeros(len(t.sizes), np.uint64)
    state = np.stack([zero + _P64[1] + _P64[2], zero + _P64[2], zero, zero - _P64[1]])
    for block, rows in _blocks(t.sizes >> 5):
        part = t.take(rows)
        for lane in range(4):
            state[lane, rows] = _xx_round(state[lane, rows], part.word(block * 32 + lane * 8))
    merged = _left(state[0], 1) + _left(state[1], 7) + _left(state[2], 12) + _left(state[3], 18)
    for lane in state:
        merged = (merged ^ _xx_round(zero, lane)) * _P64[1] + _P64[4]
    value = np.where(t.sizes >= 32, merged, _P64[5]) + t.lengths
    done = t.sizes & ~31
    for block, rows in _blocks((t.sizes & 31) >> 3):
        word = _xx_round(zero[rows], t.take(rows).word(done[rows] + block * 8))
        value[rows] = _left(value[rows] ^ word, 27) * _P64[1] + _P64[4]
    rows = np.flatnonzero(t.sizes & 4)
    word = t.take(rows).half(t.sizes[rows] & ~7) * _P64[1]
    value[rows] = _left(value[rows] ^ word, 23) * _P64[2] + _P64[3]
    for block, rows in _blocks(t.sizes & 3):
        byte = t.take(rows).byte((t.sizes[rows] & ~3) + block) * _P64[5]
        value[rows] = _left(value[rows] ^ byte, 11) * _P64[1]
    return _mixed(value, 33, int(_P64[2]), 29, int(_P64[3]), 32)


#: The default secret of XXH3 (xxHash, specification, "XXH3").
_SECRET: Final = np.frombuffer(bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
), np.uint8)  # fmt: skip
_MX1: Final = 0x165667919E3779F9
_MX2: Final = np.uint64(0x9FB21C651E98DF25)


def _secret(place: int) -> np.uint64:
    return np.uint64(_SECRET[place : place + 8].view("<u8")[0])


def _folded(a: Words, b: Words) -> Words:
    """The exclusive or of the two halves of the product of 128 bits."""
    a_low, a_high, b_low, b_high = _u32(a), a >> 32, _u32(b), b >> 32
    cross = (a_low * b_low >> 32) + _u32(a_high * b_low) + a_low * b_high
    folded: Words = (a * b) ^ (a_high * b_high + (a_high * b_low >> 32) + (cross >> 32))
    return folded


def _xx3_step(t: Texts, place: Any, key: int) -> Words:
    return _folded(t.word(place) ^ _secret(key), t.word(place + 8) ^ _secret(key + 8))


def _xx3_3(t: Texts) -> Words:
    word = (t.byte(0) << 16) | (t.byte(t.sizes >> 1) << 24) | t.byte(-1) | (t.lengths << 8)
    key = (_secret(0) ^ (_secret(0) >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return _mixed(word ^ key, 33, int(_P64[2]), 29, int(_P64[3]), 32)


def _xx3_8(t: Texts) -> Words:
    k = (t.half(-4) + (t.half(0) << 32)) ^ (_secret(8) ^ _secret(16))
    k = (k ^ _left(k, 49) ^ _left(k, 24)) * _MX2
    return _mixed((k ^ ((k >> 35) + t.lengths)) * _MX2, 28)


def _xx3_16(t: Texts) -> Words:
    low, high = t.word(0) ^ (_secret(24) ^ _secret(32)), t.word(-8) ^ (_secret(40) ^ _secret(48))
    return _mixed(t.lengths + low.byteswap() + high + _folded(low, high), 37, _MX1, 32)


def _xx3_128(t: Texts) -> Words:
    value = t.lengths * _P64[1]
    for step in range(4):
        rows = np.flatnonzero(t.sizes > 32 * step)
        part = t.take(rows)
        end = part.sizes - 16 * (step + 1)
        value[rows] += _xx3_step(part, 16 * step, 32 * step) + _xx3_step(part, end, 32 * step + 16)
    return _mixed(value, 37, _MX1, 32)


def _xx3_240(t: Texts) -> Words:
    value = t.lengths * _P64[1]
    for block in range(8):
        value = value + _xx3_step(t, 16 * block, 16 * block)
    value = _mixed(value, 37, _MX1, 32)
    for block, rows in _blocks((t.sizes >> 4) - 8):
        value[rows] += _xx3_step(t.take(rows), 16 * (block + 8), 16 * block + 3)
    return _mixed(value + _xx3_step(t, t.sizes - 16, 119), 37, _MX1, 32)


def _xx3_long(t: Texts) -> Words:
    lanes = (_P32[3], *_P64[1:5], _P32[2], _P64[5], _P32[1])
    state = np.repeat(np.array(lanes, np.uint64)[:, None], len(t.sizes), axis=1)

    def stripe(rows: Any, part: Texts, place: Any, key: int) -> None:
        for lane in range(8):
            word = part.word(place + 8 * lane)
            keyed = word ^ _secret(key + 8 * lane)
            state[lane ^ 1, rows] += word
            state[lane, rows] += _u32(keyed) * (keyed >> 32)

    for block, rows in _blocks((t.sizes - 1) >> 6):
        stripe(rows, t.take(rows), block * 64, block % 16 * 8)
        if block % 16 == 15:
            for lane in range(8):
                mixed = _mixed(state[lane, rows], 47) ^ _secret(128 + 8 * lane)
                state[lane, rows] = mixed * np.uint64(_P32[1])
    stripe(slice(None), t, t.sizes - 64, 121)
    value = t.lengths * _P64[1]
    for i in range(4):
        value = value + _folded(state[2 * i] ^ _secret(11 + 16 * i), state[2 * i + 1] ^ _secret(19 + 16 * i))
    return _mixed(value, 37, _MX1, 32)


def xxh3(t: Texts) -> Words:
    """XXH3, 64 bits, with the seed 0."""
    key = _secret(56) ^ _secret(64)
    return _by_length(
        t, (0, lambda p: _mixed(np.full(len(p.sizes), key), 33, int(_P64[2]), 29, int(_P64[3]), 32)), (3, _xx3_3),
        (8, _xx3_8), (16, _xx3_16), (128, _xx3_128), (240, _xx3_240), (_ANY, _xx3_long),
    )  # fmt: skip


# MurmurHash


def murmur2_32(t: Texts) -> Words:
    """MurmurHash2, 32 bits, with the seed 0."""
    factor, value = 0x5BD1E995, _u32(t.lengths)

    def added(value: Words, word: Words) -> Words:
        word = _u32(word * factor)
        return _u32(value * factor) ^ _u32((word ^ (word >> 24)) * factor)

    for block, rows in _blocks(t.sizes >> 2):
        value[rows] = added(value[rows], t.take(rows).half(block * 4))
    left = t.sizes & 3
    tail = t.half(t.sizes - left) & _tail_mask(left)
    value = np.where(left > 0, _u32((value ^ tail) * factor), value)
    return _mixed(_u32(_mixed(value, 13, factor)), 15)


def murmur2_64(t: Texts) -> Words:
    """MurmurHash64A with the seed 0."""
    factor = np.uint64(0xC6A4A7935BD1E995)
    value = t.lengths * factor
    for block, rows in _blocks(t.sizes >> 3):
        word = t.take(rows).word(block * 8) * factor
        value[rows] = (value[rows] ^ _mixed(word, 47, int(factor))) * factor
    left = t.sizes & 7
    tail = t.word(t.sizes - left) & _tail_mask(left)
    value = np.where(left > 0, (value ^ tail) * factor, value)
    return _mixed(value, 47, int(factor), 47)


def murmur3_32(t: Texts) -> Words:
    """MurmurHash3, x86, 32 bits, with the seed 0."""
    value = np.zeros(len(t.sizes), np.uint64)

    def word_of(word: Words) -> Words:
        return _u32(_left32(_u32(word * 0xCC9E2D51), 15) * 0x1B873593)

    for block, rows in _blocks(t.sizes >> 2):
        value[rows] = _u32(_left32(value[rows] ^ word_of(t.take(rows).half(block * 4)), 13) * 5 + 0xE6546B64)
    left = t.sizes & 3
    value = value ^ word_of(t.half(t.sizes - left) & _tail_mask(left)) ^ t.lengths
    return _mixed(_u32(_mixed(_u32(_mixed(value, 16, 0x85EBCA6B)), 13, 0xC2B2AE35)), 16)


def murmur3_128(t: Texts) -> tuple[Words, Words]:
    """MurmurHash3, x64, 128 bits, with the seed 0."""
    c1, c2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
    one, two = np.zeros(len(t.sizes), np.uint64), np.zeros(len(t.sizes), np.uint64)

    def first(word: Words) -> Words:
        return _left(word * c1, 31) * c2

    def second(word: Words) -> Words:
        return _left(word * c2, 33) * c1

    for block, rows in _blocks(t.sizes >> 4):
        part = t.take(rows)
        a = (_left(one[rows] ^ first(part.word(block * 16)), 27) + two[rows]) * 5 + 0x52DCE729
        two[rows] = (_left(two[rows] ^ second(part.word(block * 16 + 8)), 31) + a) * 5 + 0x38495AB5
        one[rows] = a
    left, end = t.sizes & 15, t.sizes & ~15
    two = two ^ second(t.word(end + 8) & _tail_mask(np.clip(left - 8, 0, 8))) ^ t.lengths
    one = one ^ first(t.word(end) & _tail_mask(np.minimum(left, 8))) ^ t.lengths
    one = one + two
    two = two + one
    one, two = (_mixed(w, 33, 0xFF51AFD7ED558CCD, 33, 0xC4CEB9FE1A85EC53, 33) for w in (one, two))
    one = one + two
    return one, two + one


def murmur3_64(t: Texts) -> Words:
    """The exclusive or of the two words of MurmurHash3, 128 bits."""
    one, two = murmur3_128(t)
    return one ^ two


# digests of blocks with padding: MD4, MD5, SHA-2


def _digest(t: Texts, state: npt.NDArray[Any], big: bool, compress: Callable[[Any, Any], Any]) -> npt.NDArray[np.uint8]:
    """The bytes of a digest for each text. state: the initial words; `compress` adds a block of 16 words to them."""
    kind = state.dtype.newbyteorder(">" if big else "<")
    block, tail = 16 * kind.itemsize, 2 * kind.itemsize
    counts = (t.sizes + 1 + tail + block - 1) // block
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1] * block
    data = np.zeros(int(counts.sum()) * block, np.uint8)
    within = np.arange(int(t.sizes.sum())) - np.repeat(np.cumsum(t.sizes) - t.sizes, t.sizes)
    data[np.repeat(starts, t.sizes) + within] = t.data[np.repeat(t.starts, t.sizes) + within]
    data[starts + t.sizes] = 0x80
    bits = (t.sizes * 8).astype(">u8" if big else "<u8").view(np.uint8).reshape(-1, 8)
    data[(starts + counts * block)[:, None] + (_EIGHT - (8 if big else tail))] = bits
    words = data.view(kind).reshape(-1, 16).astype(state.dtype)
    values = np.repeat(state[:, None], len(t.sizes), axis=1)
    first = starts // block
    for number, rows in _blocks(counts):
        values[:, rows] += compress(values[:, rows], words[first[rows] + number].T)
    return np.ascontiguousarray(values.T).astype(kind).view(np.uint8)


def _turned(x: Any, bits: int, size: int) -> Any:
    return (x << bits) | (x >> (size - bits))


def _md4_block(state: Any, words: Any) -> Any:
    a, b, c, d = state
    orders = ([*range(16)], [i % 4 * 4 + i // 4 for i in range(16)], [int(f"{i:04b}"[::-1], 2) for i in range(16)])
    shifts, added = ((3, 7, 11, 19), (3, 5, 9, 13), (3, 9, 11, 15)), (0, 0x5A827999, 0x6ED9EBA1)
    for turn in range(3):
        for i, place in enumerate(orders[turn]):
            mixed = ((b & c) | (~b & d), (b & c) | (b & d) | (c & d), b ^ c ^ d)[turn]
            moved = _turned(a + mixed + words[place] + np.uint32(added[turn]), shifts[turn][i % 4], 32)
            a, b, c, d = d, moved, b, c
    return np.stack([a, b, c, d])


def _md5_block(state: Any, words: Any) -> Any:
    a, b, c, d = state
    for i in range(64):
        turn = i // 16
        mixed = ((b & c) | (~b & d), (d & b) | (~d & c), b ^ c ^ d, c ^ (b | ~d))[turn]
        place = (i, 5 * i + 1, 3 * i + 5, 7 * i)[turn] % 16
        shift = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))[turn][i % 4]
        constant = np.uint32(int(abs(np.sin(i + 1)) * 2**32))
        a, b, c, d = d, b + _turned(a + mixed + words[place] + constant, shift, 32), b, c
    return np.stack([a, b, c, d])


@cache
def _primes(count: int) -> tuple[int, ...]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % p for p in found if p <= isqrt(number)):
            found.append(number)
        number += 1
    return tuple(found)


def _fraction(prime: int, root: int, bits: int) -> int:
    """The first bits of the fraction of a square or cube root."""
    scaled = prime << (root * bits)
    low, high = 0, 1 << (bits + 8)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**root <= scaled else (low, middle - 1)
    return low % (1 << bits)


def _sha2_block(size: int) -> Callable[[Any, Any], Any]:
    kind = np.uint32 if size == 32 else np.uint64
    rounds = 64 if size == 32 else 80
    constants = [kind(_fraction(p, 3, size)) for p in _primes(rounds)]
    s0, s1 = ((7, 18, 3), (17, 19, 10)) if size == 32 else ((1, 8, 7), (19, 61, 6))
    t0, t1 = ((2, 13, 22), (6, 11, 25)) if size == 32 else ((28, 34, 39), (14, 18, 41))

    def turned(x: Any, bits: int) -> Any:
        return _turned(x, size - bits, size)

    def compress(state: Any, words: Any) -> Any:
        w = list(words)
        for i in range(16, rounds):
            one = turned(w[i - 15], s0[0]) ^ turned(w[i - 15], s0[1]) ^ (w[i - 15] >> s0[2])
            two = turned(w[i - 2], s1[0]) ^ turned(w[i - 2], s1[1]) ^ (w[i - 2] >> s1[2])
            w.append(w[i - 16] + one + w[i - 7] + two)
        a, b, c, d, e, f, g, h = state
        for i in range(rounds):
            sums = turned(e, t1[0]) ^ turned(e, t1[1]) ^ turned(e, t1[2])
            first = h + sums + ((e & f) ^ (~e & g)) + constants[i] + w[i]
            second = (turned(a, t0[0]) ^ turned(a, t0[1]) ^ turned(a, t0[2])) + ((a & b) ^ (a & c) ^ (b & c))
            a, b, c, d, e, f, g, h = first + second, a, b, c, d + first, e, f, g
        return np.stack([a, b, c, d, e, f, g, h])

    return compress


_MD_STATE: Final = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476], np.uint32)


def md4(t: Texts) -> npt.NDArray[np.uint8]:
    """MD4, the bytes of each row."""
    return _digest(t, _MD_STATE, False, _md4_block)


def md5(t: Texts) -> npt.NDArray[np.uint8]:
    """MD5, the bytes of each row."""
    return _digest(t, _MD_STATE, False, _md5_block)


def sha2(t: Texts, bits: int) -> npt.NDArray[np.uint8]:
    """SHA-224, SHA-384 or SHA-512, the bytes of each row."""
    size = 32 if bits == 224 else 64
    primes = _primes(16)[8:] if bits < 512 else _primes(8)
    state = [_fraction(p, 2, 64) for p in primes]
    if bits == 224:  # the second half of the words of SHA-384
        state = [word & 0xFFFFFFFF for word in state]
    initial = np.array(state, np.uint32 if size == 32 else np.uint64)
    return _digest(t, initial, True, _sha2_block(size))[:, : bits // 8]


# numbers


def int64(x: Words) -> Words:
    """ClickHouse's `intHash64`."""
    return _mixed(x ^ np.uint64(0x4CF2D2BAAE6DA887), 33, 0xFF51AFD7ED558CCD, 33, 0xC4CEB9FE1A85EC53, 33)


def int32(x: Words) -> Words:
    """ClickHouse's `intHash32`."""
    x = x ^ np.uint64(0x75D9543DE018BF45)
    x = ~x + (x << 18)
    x = (x ^ _right(x, 31)) * 21
    x = x ^ _right(x, 11)
    x = x + (x << 6)
    return _u32(x ^ _right(x, 22))


def java(t: Texts) -> Words:
    """Java's hash over the signed bytes of a text, as 32 unsigned bits."""
    value = np.zeros(len(t.sizes), np.uint64)
    for place, rows in _blocks(t.sizes):
        byte = t.take(rows).byte(place)
        value[rows] = _u32(value[rows] * 31 + byte - (byte >> 7 << 8))
    return value
