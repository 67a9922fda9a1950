"""Hashes, digests and base58, against ClickHouse 26.9 (chDB), hashlib and xxhash."""

from __future__ import annotations

import hashlib
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from watersmeet.kernel.arrays import bytehashes
from watersmeet.kernel.arrays.bytehashes import Texts
from watersmeet.kernel.evaluation import nativefunctions

native = partial(nativefunctions.native, wait=time.sleep)

#: Beginnings of a text whose lengths reach every branch of the algorithms.
_BYTES = ("The quick brown fox, née Ж;" * 50).encode()
_LENGTHS = (0, 1, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 200, 240, 241, 1024, 1100)

#: The first digits of SHA-256 over the lines with ClickHouse's values, by function; of bytes their hexadecimal digits.
_OF_CLICKHOUSE = {
    "city_hash64": "c938dae89245571c",
    "half_md5": "2013e08d3044884b",
    "hive_hash": "7f1b9f9c2ce2470d",
    "java_hash": "c354698d41bd3b87",
    "md4": "53b5c94176382631",
    "murmur_hash2_32": "4309d52609e87301",
    "murmur_hash2_64": "3984216dd3266f00",
    "murmur_hash3_128": "b7fe826e81fa58d8",
    "murmur_hash3_32": "886c106207c96c61",
    "murmur_hash3_64": "f77ffc13bed40fc3",
    "sip_hash128": "397a4928b9ab2fc0",
    "sip_hash64": "1825533a92fb5d36",
    "xx_hash32": "f5b6d88816a7d3f6",
    "xx_hash64": "7d8fe8b19bf3a7ba",
    "xxh3": "69b5462546c02b3a",
}


def _texts(lengths: tuple[int, ...] = _LENGTHS) -> pa.Array:
    return pa.array([_BYTES[:n] for n in lengths], pa.binary())


def _shown(value: object) -> str:
    return value.hex().upper() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("name", _OF_CLICKHOUSE)
def test_hashes_are_those_of_clickhouse(name: str) -> None:
    values, _ = native(name, [_texts()])
    lines = "\n".join(_shown(v) for v in values.to_pylist())
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == _OF_CLICKHOUSE[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("city_hash64", 7468329322676821011),
        ("half_md5", 344816746590365630),
        ("murmur_hash2_32", 2171431463),
        ("murmur_hash2_64", 6575459576158992452),
        ("murmur_hash3_128", "AE1329B79BAB34F991E2EC6715F7F92F"),
        ("murmur_hash3_32", 914284213),
        ("murmur_hash3_64", 18305627054227103971),
        ("sip_hash128", "7B64E9F103295C192F07A59FCA5D7252"),
        ("sip_hash64", 1193743241355087095),
        ("xx_hash32", 1353805580),
        ("xx_hash64", 14756808377901732262),
        ("xxh3", 3189474376958980599),
    ],
)
def test_several_arguments_combine_as_in_clickhouse(name: str, expected: object) -> None:
    values, _ = native(name, [pa.array(["a", None, "a"]), pa.array(["b", "b", None])])
    assert [None if v is None else _shown(v) for v in values.to_pylist()] == [str(expected), None, None]


def test_numbers_hash_by_the_bits_of_their_type() -> None:
    columns = [
        (pa.array([-1], pa.int16()), 6547939410751295652),
        (pa.array([-1], pa.int32()), 9168733277332772950),
        (pa.array([-1], pa.int64()), 14600443904207254319),
        (pa.array([(1 << 64) - 1], pa.decimal128(20, 0)), 14600443904207254319),
        (pa.array([1.5], pa.float64()), 7287324520655339053),
        (pa.array([1.5], pa.float32()), 17641193269776743632),
        (pa.array([True]), 10577349846663553072),
    ]
    assert [int(native("city_hash64", [c])[0][0].as_py()) for c, _ in columns] == [value for _, value in columns]
    of_32, of_64 = (native(f"int_hash{bits}", [pa.array([1, -5, 12345678901])])[0].to_pylist() for bits in (32, 64))
    assert of_32 == [1343103100, 2590892250, 2302547692]
    assert of_64[:2] == [10577349846663553072, 13263830642547698461]


def test_all_lengths_of_xxhash_and_digests() -> None:
    lengths = tuple(range(300))
    texts, given = Texts.of(_texts(lengths)), [_BYTES[:n] for n in lengths]
    assert bytehashes.xx32(texts).tolist() == [xxhash.xxh32_intdigest(b) for b in given]
    assert bytehashes.xx64(texts).tolist() == [xxhash.xxh64_intdigest(b) for b in given]
    assert bytehashes.xxh3(texts).tolist() == [xxhash.xxh3_64_intdigest(b) for b in given]
    for bits in (224, 384, 512):
        found = [row.tobytes() for row in bytehashes.sha2(texts, bits)]
        assert found == [hashlib.new(f"sha{bits}", b).digest() for b in given]


def test_a_slice_of_a_column_hashes_like_its_rows() -> None:
    whole = pa.array(["x", None, "long text of more than sixteen bytes", "", "x"])
    values = native("city_hash64", [whole])[0]
    assert native("city_hash64", [whole.slice(2)])[0].equals(values.slice(2))
    assert values[0] == values[4]
    assert not values[1].is_valid


def test_base58_is_that_of_bitcoin() -> None:
    encoded, _ = native("base58_encode", [pa.array([b"hello", b"\0\0\0\x01\x02\x03", b"", None, b"\0"], pa.binary())])
    assert encoded.to_pylist() == ["Cn8eVZg", "111Ldp", "", None, "1"]
    decoded, failures = native("base58_decode", [encoded])
    assert decoded.to_pylist() == [b"hello", b"\0\0\0\x01\x02\x03", b"", None, b"\0"]
    assert failures == []
    rng = np.random.default_rng(7)
    given = pa.array([rng.bytes(int(n)) for n in rng.integers(0, 80, 200)], pa.binary())
    assert native("base58_decode", [native("base58_encode", [given])[0]])[0].equals(given)


def test_what_is_not_base58_fails_by_row() -> None:
    values, failures = native("base58_decode", [pa.array(["Cn8eVZg", "0", None, "a" * 5000])])
    assert values[0].as_py() == b"hello"
    assert failures == [(3, "a text for base58 is too long"), (1, "invalid base58 text")]
