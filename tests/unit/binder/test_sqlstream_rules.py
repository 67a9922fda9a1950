"""The listings of SQLstream's document, by the rules in plain Python that random tests go by; where they differ the
rulings of docs/rules count.
"""

from collections import Counter

import pytest
from tests.property.sqlstream_rules import Range, Rows, Stream, Unit, join, with_kept_table

MINUTE = Range(60)
ORDERS = [
    (130, 750, "IBM"),
    (190, 1000, "IBM"),
    (195, 1000, "GOOGL"),
    (200, 2000, "GOOGL"),
    (200, 2000, "IBM"),
    (208, 1000, "MSFT"),
    (210, 2000, "MSFT"),
]
PRICES = [(130, 75, "IBM"), (190, 100, "IBM"), (195, 100, "MSFT"), (200, 100, "GOOGL"), (205, 200, "MSFT")]
MATCHED = [
    "130 IBM 750 75",
    "190 IBM 1000 75",
    "190 IBM 750 100",
    "190 IBM 1000 100",
    "200 GOOGL 1000 100",
    "200 GOOGL 2000 100",
    "200 IBM 2000 100",
]
LATER = [
    "208 MSFT 1000 100",
    "208 MSFT 1000 200",
    "210 MSFT 2000 100",
    "210 MSFT 2000 200",
    "210 IBM 1000 200",
    "210 IBM 2000 200",
]


def stream(rows):
    found = Stream()
    for time, *values in rows:
        found.insert(time, tuple(values))
    return found


def listing(kind, window=MINUTE, more=()):
    found = join((stream(ORDERS), window), (stream([*PRICES, *more]), window), kind, lambda o, p: o[1] == p[1], (2, 2))
    return Counter(f"{time} {p} {o} {price}" for time, (o, _, price, p) in found.rows)


@pytest.mark.parametrize(
    "kind, alone",
    [
        ("inner", []),
        ("left", ["195 None 1000 None"]),
        ("right", ["195 MSFT None 100"]),
        ("full", ["195 None 1000 None", "195 MSFT None 100"]),
    ],
)
def test_listings(kind, alone):
    assert listing(kind) == Counter(MATCHED + alone)
    later = LATER + ["205 MSFT None 200"] * (kind in ("right", "full"))
    assert listing(kind, more=[(210, 200, "IBM")]) == Counter(MATCHED + alone + later)


def test_rows():
    assert listing("inner", Rows(5)) == Counter([*MATCHED, "200 IBM 2000 75"])
    assert listing("inner", Rows(1)) == Counter([*MATCHED[:4], MATCHED[5]])


def test_window_that_ends_before_the_current_row():
    a, b = stream([(0, "a0"), (30, "a30")]), stream([(5, "b5"), (15, "b15"), (55, "b55"), (90, "b90")])
    a.bound(120)
    b.bound(120)
    found = join((a, Range(60, 20)), (b, Range(10)), "inner", lambda *_: True, (1, 1))
    assert found.rows == [(20, ("a0", "b15")), (55, ("a0", "b55")), (55, ("a30", "b55")), (90, ("a30", "b90"))]


def test_every_city():
    sales = stream([(9, "Berlin"), (15, "Lyon")])
    found = with_kept_table(sales, 5, [("Berlin",), ("Lyon",)], "right", lambda s, c: s == c, (1, 1))
    assert sorted(found.rows) == [(9, ("Berlin", "Berlin")), (10, (None, "Lyon")), (15, ("Lyon", "Lyon"))]


def test_earlier_rows_are_rejected():
    found = stream([(5, "a"), (5, "b"), (4, "c"), (6, "d")])
    assert ([time for time, _ in found.rows], found.rejected) == ([5, 5, 6], 1)


def test_rows_of_a_unit():
    found = stream([(3, "a"), (4, "b"), (5, "c")])
    assert [Unit(5).content(found, now) for now in (3, 4, 5, 9, 10)] == [{0}, {0, 1}, {2}, {2}, set()]
