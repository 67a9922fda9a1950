"""Dictionaries of layout IP_TRIE against Python's own `ipaddress`: of the networks that have an address, the longest.

ClickHouse, "ip_trie" among the layouts of dictionaries. An answer serves until the lifetime of the dictionary is over.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
from functools import partial

import pyarrow as pa
import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow
from watersmeet.catalog import AddressRanges, Dictionary, External
from watersmeet.errors import Error
from watersmeet.expressions.webfunctions import address_sql
from watersmeet.formats.valuetexts import evaluate
from watersmeet.maintenance.refreshing import address_ranges
from watersmeet.values.types import VARCHAR, Field

START_US = 1_700_000_000_000_000
MAPPED = 0xFFFF << 32


def number(text):
    """An address as one of IPv6; None if it is none."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if getattr(found, "scope_id", None):
        return None
    return int(found) if found.version == 6 else MAPPED | int(found)


def network(text):
    """(first address, last address, bits of the prefix)."""
    found = ipaddress.ip_network(text, strict=False)
    four = found.version == 4
    first, last = int(found.network_address), int(found.broadcast_address)
    return (MAPPED | first, MAPPED | last, found.prefixlen + 96) if four else (first, last, found.prefixlen)


def meant(networks, address):
    """The value of the longest prefix, the last one of equal networks."""
    place = number(address)
    if place is None:
        return None
    found = [
        (bits, i, v)
        for i, (t, v) in enumerate(networks)
        for first, last, bits in [network(t)]
        if first <= place <= last
    ]
    return max(found)[2] if found else None


def some_address(rng):
    """Addresses that are near each other."""
    if rng.random() < 0.6:
        last = rng.choice([0, 1, 127, 128, 255])
        return f"{rng.choice([10, 10, 192])}.{rng.choice([0, 1, 255])}.{rng.randrange(3)}.{last}"
    if rng.random() < 0.3:
        return f"::ffff:10.{rng.randrange(2)}.0.{rng.choice([0, 128])}"
    high = rng.choice([0, 1 << 127, 0x20010DB8 << 96])
    return str(ipaddress.IPv6Address(high | rng.choice([0, 1, 1 << 64, 1 << 79, MAPPED - 1])))


def some_network(rng):
    text = some_address(rng)
    if rng.random() < 0.2:
        return text
    lengths = [0, 1, 8, 9, 15, 16, 17, 24, 25, 31, 32]
    return f"{text}/{rng.choice([*lengths, 48, 64, 95, 96, 97, 112, 127, 128] if ':' in text else lengths)}"


ODD = (
    *(
        "",
        ":",
        "::",
        "1::",
        "::1",
        "1:2:3:4:5:6:7::",
        "::2:3:4:5:6:7:8",
        "1:2:3:4:5:6:7::8",
        "1::2::3",
        ":::",
        "12345::",
    ),
    *("01.2.3.4", "1.2.3", "1.2.3.4.5", "256.1.1.1", "::1.2.3", "::ffff:1.2.3.4", "1::1.2.3.4:5", "A::B", "fe80::1%e"),
    *("1.2.3.4 ", "1:2:3:4:5:6:7:8:9", "1.2.3.4::", "12345::"),
)


def test_texts_are_those_that_python_takes():
    rng = random.Random(1)
    texts = [*ODD]
    for _ in range(3000):
        bits = rng.getrandbits(128) & rng.getrandbits(128) & rng.getrandbits(128)
        four, six = ipaddress.IPv4Address(bits >> 96), ipaddress.IPv6Address(bits)
        text = rng.choice([str(four), str(six), f"::{four}", six.exploded])
        place = rng.randrange(len(text))
        texts += [text, text[:place] + rng.choice(["", ":", ".", "0", "f", "g", "::"]) + text[place + 1 :]]
    (found,) = evaluate([pa.array(texts)], [address_sql("t0")])
    for text, digits in zip(texts, found.to_pylist(), strict=True):
        place = number(text)
        assert digits == (None if place is None else f"{place:032x}"), text


@pytest.mark.parametrize("seed", mostly_slow(range(12), 1))
def test_ranges_have_each_address_once_with_the_longest_prefix(seed):
    rng = random.Random(seed)
    networks = [(some_network(rng), i) for i in range(rng.choice([0, 1, 3, 30]))]
    networks = [(t, v) for t, v in networks if "/" not in t or int(t.partition("/")[2]) > 8 or rng.random() < 0.2]
    relation = AddressRanges(
        *("t1", "d", (Field("prefix", VARCHAR), Field("v", VARCHAR))),
        external=External("file", "f"),
        dictionary=Dictionary(),
        owner="t0",
        networks=("prefix",),
    )
    values = pa.array([v for _, v in networks], pa.int64())
    rows = pa.table({"prefix": pa.array([t for t, _ in networks], pa.string()), "v": values})
    found = address_ranges(relation, rows).to_pylist()
    ranges = []
    for row in found:
        key = row["~network"]
        head = f"{'0' * 20}ffff{key[1:]}" if key[0] == "4" else key[1:]
        assert len(head + row["~first"]) == len(head + row["~last"]) == 32
        ranges.append((int(head + row["~first"], 16), int(head + row["~last"], 16), row["v"], row["prefix"]))
    ranges.sort()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    edges = {p for t, _ in networks for first, last, _ in [network(t)] for p in (first - 1, first, last, last + 1)}
    for place in [p for p in edges if 0 <= p < 1 << 128] + [number(some_address(rng)) for _ in range(50)]:
        wanted = meant(networks, str(ipaddress.IPv6Address(place)))
        within = [v for first, last, v, _ in ranges if first <= place <= last]
        assert within == ([] if wanted is None else [wanted]), (seed, ipaddress.IPv6Address(place))


def regions_of(place):
    """The addresses that have one key with an address: of IPv4 those of its first 16 bits, of others without these."""
    if MAPPED <= place < MAPPED + (1 << 32):
        return ((place >> 16 << 16, place | 0xFFFF),)
    begin, end = place >> 112 << 112, place | (1 << 112) - 1
    return ((begin, end),) if begin else ((0, MAPPED - 1), (MAPPED + (1 << 32), end))


def run(seed, tmp_path):
    rng = random.Random(seed)
    path = tmp_path / "n.csv"
    networks, cached, expected, sent, now_s, count = [], {}, [], [], 0, 0
    ttl_s = rng.choice([0, 60])
    lifetime = f"LIFETIME({ttl_s})"

    def write():
        nonlocal networks
        networks = list({t: f"n{i}" for i in range(8) for t in [some_network(rng)]}.items())
        networks = [(t, v) for t, v in networks if "/" not in t or int(t.partition("/")[2]) >= 8]
        path.with_suffix(".new").write_text("".join(f"{t},{v}\n" for t, v in networks))
        os.replace(path.with_suffix(".new"), path)

    def ask(address):
        """In a stream: the ranges of the first 16 bits are an answer, which serves for a while."""
        place = number(address)
        if place is None:
            return None
        regions = regions_of(place)
        if regions not in cached or (ttl_s and now_s - cached[regions][1] >= ttl_s):
            ranges = [network(t) for t, _ in networks]
            if not any(first <= end and last >= begin for first, last, _ in ranges for begin, end in regions):
                return None  # which is not remembered
            cached[regions] = list(networks), now_s
        return meant(cached[regions][0], address)

    write()
    open_ = partial(watersmeet.connect, tmp_path / "db", "timeplus", runtime="inprocess")
    connection = open_(parallelism=rng.choice([1, 3]))
    call = "dict_get('d', 'v', a) AS got, dict_has('d', a) AS has, dict_get_or_null('d', 'v', a) AS nothing"
    try:
        Harness(connection).set_clock(START_US)
        connection.execute(
            f"CREATE DICTIONARY d(prefix string, v string DEFAULT 'none') PRIMARY KEY prefix "
            f"SOURCE(FILE(path '{path}' format 'CSV')) LAYOUT(IP_TRIE()) {lifetime}"
        )
        connection.execute(f"CREATE STREAM s(n int, a string); CREATE MATERIALIZED VIEW m AS SELECT n, {call} FROM s")
        for _ in range(8):
            step = rng.random()
            if step < 0.25:
                write()
            elif step < 0.4:
                now_s += rng.choice([1, 59, 60])
                Harness(connection).set_clock(START_US + now_s * 1_000_000)
            elif step < 0.5:
                connection.execute("FLUSH")
                connection.close()
                connection = open_()
                Harness(connection).set_clock(START_US + now_s * 1_000_000)
            else:
                rows = [(count + i, rng.choice([some_address(rng), some_address(rng), "no address"])) for i in range(6)]
                count += len(rows)
                sent += rows
                expected += [(n, ask(a)) for n, a in rows]
                connection.execute(f"INSERT INTO s(n, a) VALUES {', '.join(map(str, rows))}; FLUSH")
        found = connection.execute("SELECT * EXCEPT (_tp_time) FROM table(m)").fetchall()
        wanted = [(n, v or "none", v is not None, v) for n, v in expected]
        assert sorted(found) == sorted(wanted), seed
        now = connection.execute(f"SELECT n, {call} FROM table(s)").fetchall()
        answers = [(n, meant(networks, a)) for n, a in sent]
        assert sorted(now) == sorted((n, v or "none", v is not None, v) for n, v in answers), (seed, "now")
        shown = connection.execute("SELECT prefix, v FROM d").fetchall()
        assert sorted(shown) == sorted(networks)
    finally:
        connection.close()


@pytest.mark.parametrize("seed", mostly_slow(range(10), 1))
def test_calls_answer_as_the_rules_say(seed, tmp_path):
    run(seed, tmp_path)


def test_what_is_refused(tmp_path):
    (tmp_path / "n.csv").write_text("10.0.0.0/33,x\n")
    source = f"SOURCE(FILE(path '{tmp_path}/n.csv' format 'CSV')) LAYOUT(IP_TRIE())"
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:

        def refused(sql):
            with pytest.raises(Error) as found:
                connection.execute(sql)
            return found.value

        create = f"CREATE DICTIONARY d(prefix string, v string) PRIMARY KEY prefix {source}"
        found = refused(create)
        assert (found.condition, '"10.0.0.0/33"' in found.message) == ("INVALID_VALUE", True)
        assert connection.execute("SHOW DICTIONARIES").fetchall() == []
        assert refused(create.replace("prefix string", "prefix int")).condition == "DATATYPE_MISMATCH"
        assert refused(create.replace("PRIMARY KEY prefix", "PRIMARY KEY prefix, v")).condition == "INVALID_PARAMETER"
        (tmp_path / "n.csv").write_text("10.0.0.0/8,x\n")
        connection.execute(create)
        connection.execute(
            "CREATE STREAM s(a string); CREATE MATERIALIZED VIEW m AS SELECT dict_get('d', 'v', a) FROM s"
        )
        assert refused("SELECT * FROM s JOIN d ON s.a = d.prefix").condition == "FEATURE_NOT_SUPPORTED"
        assert refused("SELECT dict_get('d', 'v', 1)").condition == "DATATYPE_MISMATCH"
        assert "m" in refused("DROP DICTIONARY d").detail
        assert connection.execute(
            "SELECT dict_get('d', 'v', '10.1.2.3'), dict_get('d', 'v', '11.1.2.3')"
        ).fetchall() == [("x", "")]
        connection.execute("DROP DICTIONARY d CASCADE")
        assert [r for r in connection._session.catalog.relations.values() if isinstance(r, AddressRanges)] == []
