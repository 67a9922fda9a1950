"""Regular and ASOF joins of DataFrames without Spark: random histories beside rules written in plain Python."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.thorough import some
from tests.unit.frames.query import MemoryStore, Query, at, given

from watersmeet.errors import Error
from watersmeet.frames.buckets import check_identity
from watersmeet.frames.building import Options, asof, build, latest
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, SMALLINT, VARCHAR, SqlType


def rows(rng: random.Random, count: int, tag: str) -> list[tuple]:
    return [
        (rng.choice([None, 1, 2, 3, 4]), at(rng.choice([None, *range(12)])), rng.choice([None, tag, tag + "2"]))
        for _ in range(count)
    ]


def joined(left: list[tuple], right: list[tuple], how: str, meets) -> Counter:
    """The join by its definition. The key is the first column of both sides."""
    found: Counter[tuple] = Counter()
    met = set()
    for row in left:
        partners = [(i, r) for i, r in enumerate(right) if row[0] is not None and row[0] == r[0] and meets(row, r)]
        met.update(i for i, _ in partners)
        if how in ("semi", "anti"):
            found[row] += bool(partners) == (how == "semi")
        elif how not in ("semi", "anti"):
            found.update(row + r[1:] for _, r in partners)
            if not partners and how in ("left", "full"):
                found[(*row, None, None)] += 1
    if how in ("right", "full"):
        found.update((r[0], None, None, *r[1:]) for i, r in enumerate(right) if i not in met)
    return +found


def nearest(
    left: list[tuple], right: list[tuple], how: str, direction: str, exact: bool, tolerance: float | None
) -> Counter:
    found: Counter[tuple] = Counter()
    for row in left:
        fits = []
        for r in right:
            if None in (row[0], row[1], r[1]) or row[0] != r[0]:
                continue
            away = (row[1] - r[1]).total_seconds() * (1 if direction == "backward" else -1)
            if (away > 0 or (exact and away == 0)) and (tolerance is None or away <= tolerance):
                fits.append((away, r[2] is None, r[2] or "", r))
        if fits:
            found[row + min(fits, key=lambda f: f[:3])[3][1:]] += 1
        elif how == "left":
            found[(*row, None, None)] += 1
    return found


def follow(query: Query, rng: random.Random, expected) -> None:
    """Random micro-batches; after each the result is what the rules say of all rows so far."""
    left: list[tuple] = []
    right: list[tuple] = []
    for _ in range(6):
        new = rows(rng, rng.choice([0, 1, 8]), "l"), rows(rng, rng.choice([0, 1, 8]), "r")
        left += new[0]
        right += new[1]
        query.batch(*new, rng=rng)
        assert query.content == expected(left, right)


@pytest.mark.parametrize("seed", some(range(6)))
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_every_kind(how, seed):
    query = Query(Options(on="k", how=how), buckets=2)
    assert query.appends == (how in ("inner", "semi"))
    follow(query, random.Random(seed), lambda left, right: joined(left, right, how, lambda a, b: True))


@pytest.mark.parametrize("seed", some(range(6)))
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_windows(how, seed):
    def meets(a: tuple, b: tuple) -> bool:
        return None not in (a[1], b[1]) and window(a[1]) == window(b[1])

    def window(time):
        start = at((time - at(0)).total_seconds() // 5 * 5)
        return start, at((start - at(0)).total_seconds() + 5)

    def expected(left, right):
        found: Counter[tuple] = Counter()
        for row, n in joined(left, right, how, meets).items():
            time = row[1] or (row[3] if how in ("right", "full") else None)
            found[(*row, None if time is None else window(time))] += n
        return found

    query = Query(Options(on="k", how=how, window="5 seconds", time="ts"), buckets=2)
    follow(query, random.Random(seed), expected)


@pytest.mark.parametrize("how", ["inner", "left", "full", "anti"])
@pytest.mark.parametrize("bounds", ["2 seconds", ("-3 seconds", "1 second"), (None, "1 second"), ("0 seconds", None)])
def test_intervals(how, bounds):
    low, high = {"2 seconds": (-2, 2)}.get(bounds) or {
        ("-3 seconds", "1 second"): (-3, 1),
        (None, "1 second"): (-99, 1),
        ("0 seconds", None): (0, 99),
    }[bounds]

    def meets(a: tuple, b: tuple) -> bool:
        return None not in (a[1], b[1]) and low <= (b[1] - a[1]).total_seconds() <= high

    query = Query(Options(on="k", how=how, within=bounds, time="ts"), buckets=2)
    follow(query, random.Random(7), lambda left, right: joined(left, right, how, meets))


@pytest.mark.parametrize("seed", some(range(6)))
@pytest.mark.parametrize("name", ["inner", "left", "full", "semi", "anti", "asof", "window"])
def test_rows_that_are_taken_back(name, seed):
    """Both sides are results of other joins, say: rows come and go."""
    how = name if name not in ("asof", "window") else "left"
    match = asof("ts", "ts") if name == "asof" else None
    window = {"window": "5 seconds", "time": "ts"} if name == "window" else {}
    query = Query(Options(on="k", how=how, match=match, **window), given(signed=True), given(signed=True))
    assert not query.appends
    rng = random.Random(seed)
    content: list[Counter] = [Counter(), Counter()]
    for _ in range(10):
        changes: list[list[tuple]] = [[], []]
        for side, tag in enumerate("lr"):
            gone = rng.sample(list(content[side].elements()), min(2, content[side].total()))
            changes[side] = [(*r, 1) for r in rows(rng, rng.choice([0, 5]), tag)] + [(*r, -1) for r in gone]
            for row in changes[side]:
                content[side][row[:-1]] += row[-1]
        query.batch(*changes, rng=rng)
        left, right = (list(c.elements()) for c in content)
        if name == "asof":
            assert query.content == nearest(left, right, how, "backward", True, None)
        elif name == "window":
            pairs = joined(left, right, how, lambda a, b: None not in (a[1], b[1]) and floor(a[1]) == floor(b[1]))
            assert Counter({r[:-1]: n for r, n in query.content.items()}) == pairs
        else:
            assert query.content == joined(left, right, how, lambda a, b: True)


def floor(time):
    return (time - at(0)).total_seconds() // 5


@pytest.mark.parametrize(
    ("options", "watermark", "text"),
    [
        ({"emit": "final"}, None, 'emit="final" and a right side whose rows are taken back'),
        ({"match": latest()}, None, 'emit="arrival" and a right side'),
        ({}, ("ts", 5), "a watermark on a right side whose rows are taken back"),
    ],
)
def test_rows_that_can_not_be_taken_back(options, watermark, text):
    with pytest.raises(Error) as caught:
        Query(Options(on="k", **options), given(), given(signed=True, watermark=watermark))
    assert text in str(caught.value)


def test_as_of_a_version():
    query = Query(Options(on="k", how="left", as_of="ts"))
    follow(query, random.Random(3), lambda left, right: nearest(left, right, "left", "backward", True, None))


def test_a_repeated_batch_gives_the_same_bytes():
    stores = []
    for seed in range(2):
        query = Query(Options(on="k", how="full"), buckets=2)
        data = random.Random(5)
        for _ in range(8):
            query.batch(rows(data, 20, "l"), rows(data, 20, "r"), rng=random.Random(seed))
        stores.append([{name: b.to_pybytes() for name, b in s.runs.items()} for s in query.stores])
    assert stores[0] == stores[1]


def test_pairs_of_keys_and_names_of_columns():
    query = Query(
        Options(on=["a", ("b", "c")], how="left"),
        given(("a", INTEGER), ("b", BIGINT), ("v", VARCHAR)),
        given(("a", INTEGER), ("c", BIGINT), ("v", VARCHAR)),
    )
    assert [o.name for o in query.shape.outputs] == ["a", "b", "v", "c", "v_right"]
    query.batch([(1, 5, "x"), (1, 6, "y")], [(1, 5, "z"), (2, 6, "w")])
    assert query.content == Counter([(1, 5, "x", 5, "z"), (1, 6, "y", None, None)])


def test_the_state_of_another_join_is_refused():
    query = Query(Options(on="k"), buckets=2)
    query.batch([(1, at(0), "a")])
    other = Query(Options(on="k", how="left"), buckets=2)
    other.stores = query.stores
    with pytest.raises(Error, match="another join") as caught:
        other.batch([(1, at(0), "a")])
    assert caught.value.condition == "STATE_MISMATCH"
    more = Query(Options(on="k"), buckets=3)
    more.stores = [*query.stores, *query.stores[:1]]
    with pytest.raises(Error, match=r"buckets=2, this is 3"):
        more.batch([(1, at(0), "a")])


def test_a_task_compares_the_join_without_any_bucket():
    store = MemoryStore()
    two, three, left = (
        Query(Options(on="k", how=how), buckets=n).shape for how, n in (("inner", 2), ("inner", 3), ("left", 2))
    )
    check_identity(two, store)
    check_identity(two, store)
    for other, says in ((three, r"buckets=2, this is 3"), (left, "another join")):
        with pytest.raises(Error, match=says) as caught:
            check_identity(other, store)
        assert caught.value.condition == "STATE_MISMATCH"


@pytest.mark.parametrize(
    "on", [[("a", "x"), ("a", "y")], [("a", "y"), ("a", "x")], [["a", "y"], ["A", "X"], ("a", "y")]]
)
def test_whole_numbers_that_must_be_equal_get_the_widest_of_their_types(on):
    query = Query(Options(on=on), given(("a", INTEGER)), given(("x", SMALLINT), ("y", BIGINT)))
    assert {side.schema[n].type for side in query.shape.sides for n in side.keys} == {BIGINT}
    assert query.shape.left.keys == (0, 0)
    query.batch([(1,), (2,)], [(1, 1), (2, 3), (1, 2)])
    assert query.content == Counter([(1, 1, 1)])


def test_names_that_differ_in_case_are_one_whatever_their_type():
    for kind in (INTEGER, BIGINT, VARCHAR):
        right = INTEGER if kind == BIGINT else kind
        query = Query(Options(on="ID", how="LEFT_outer"), given(("Id", kind)), given(("iD", right), ("v", VARCHAR)))
        assert query.shape.how == "left"
        assert [o.name for o in query.shape.outputs] == ["Id", "v"]


def test_keys_are_equal_as_in_spark():
    """-0.0 is 0.0, NaN is NaN; a NULL within a key is a value."""
    numbers = [(0.0, "zero"), (float("nan"), "nan"), (1.0, "one"), (None, "null")]
    query = Query(Options(on="k"), given(("k", DOUBLE), ("v", VARCHAR)), given(("k", DOUBLE), ("w", VARCHAR)))
    query.batch(numbers, [(-0.0, "zero"), (float("nan"), "nan"), (None, "null")])
    assert sorted(row[1:] for row in query.content) == [("nan", "nan"), ("zero", "zero")]
    pair = SqlType("struct", fields=(("p", INTEGER), ("q", INTEGER)))
    several = SqlType("array", element=INTEGER)
    for kind, keys in ((pair, [{"p": 1, "q": None}, {"p": None, "q": None}]), (several, [[1, None], []])):
        query = Query(Options(on="k"), given(("k", kind), ("v", INTEGER)), given(("k", kind), ("w", INTEGER)))
        found = query.batch([(key, n) for n, key in enumerate([*keys, None])], [(key, n) for n, key in enumerate(keys)])
        assert sorted(row[1:] for row in found) == [(0, 0), (1, 1)]


def test_late_rows_are_dropped_and_counted():
    query = Query(Options(on="k"), given(watermark=("ts", 5)), given(watermark=("ts", 0)))
    query.batch([(1, at(20), "a"), (1, at(1), "same batch")], [(1, at(30), "r")])
    assert query.late == [0, 0]
    query.batch(
        [(1, at(14.9), "late"), (1, at(15), "just"), (1, None, "no time")], [(1, at(29), "late"), (2, at(31), "r")]
    )
    assert query.late == [1, 1]
    assert sorted(r[2] for r in query.content) == ["a", "just", "no time", "same batch"]


def test_a_time_far_ahead_does_not_move_the_watermark():
    query = Query(Options(on="k"), given(watermark=("ts", 0)), given())
    query.batch([(1, at(9_999_999), "a")], now=at(86_400))
    query.batch([(1, at(5), "b")], now=at(86_400))
    assert query.late == [0, 0]


@pytest.mark.parametrize(
    ("options", "condition", "text"),
    [
        ({"on": "x"}, "UNDEFINED_COLUMN", 'the left side has no column "x"'),
        ({"on": []}, "JOIN_WITHOUT_EQUALITY", "no columns that must be equal"),
        ({"on": ["k", ("k", "k", "k")]}, "INVALID_PARAMETER", "on has"),
        ({"on": [("k", "v")]}, "DATATYPE_MISMATCH", '"k" is integer and "v" is character varying'),
        ({"on": "k", "how": "cross"}, "INVALID_PARAMETER", "how='cross'"),
        ({"on": "k", "how": "full", "match": asof("ts", "ts")}, "ASOF_KIND", 'how="full" with asof'),
        ({"on": "k", "match": asof("ts", "v")}, "DATATYPE_MISMATCH", "are matched by asof"),
        ({"on": "k", "match": asof("v", "v", tolerance="1 second")}, "INVALID_PARAMETER", "a tolerance"),
        ({"on": "k", "match": asof("ts", "ts"), "window": "1 hour"}, "FEATURE_NOT_SUPPORTED", "together with match"),
        ({"on": "k", "window": "1 month", "time": "ts"}, "INVALID_PARAMETER", "not a length of time"),
        ({"on": "k", "window": "1 minute"}, "INVALID_PARAMETER", "window needs the time of the left side"),
        ({"on": "k", "within": "1 minute", "time": "v"}, "DATATYPE_MISMATCH", "is character varying"),
        ({"on": "k", "within": ("2 seconds", "1 second"), "time": "ts"}, "INVALID_PARAMETER", "no pair can match"),
        ({"on": "k", "within": ("1 second",), "time": "ts"}, "INVALID_PARAMETER", "within=('1 second',)"),
        ({"on": "k", "within": (None, "99999999 days"), "time": "ts"}, "INVALID_PARAMETER", "too long"),
        ({"on": "k", "emit": "later"}, "INVALID_PARAMETER", "emit='later'"),
        ({"on": "k", "emit": ""}, "INVALID_PARAMETER", "emit=''"),
        ({"on": {"k"}}, "INVALID_PARAMETER", "on has {'k'}"),
        ({"on": None}, "INVALID_PARAMETER", "on has None"),
        ({"on": [()]}, "INVALID_PARAMETER", "on has ()"),
        ({"on": "k", "how": None}, "INVALID_PARAMETER", "how=None"),
        ({"on": "k", "time": ("ts",)}, "INVALID_PARAMETER", "time=('ts',)"),
        ({"on": "k", "time": ("ts", None)}, "INVALID_PARAMETER", "time=('ts', None)"),
        ({"on": "k", "as_of": ["ts"]}, "INVALID_PARAMETER", "as_of=['ts']"),
        ({"on": "k", "match": "asof"}, "INVALID_PARAMETER", "match='asof'"),
        ({"on": "k", "within": 5, "time": "ts"}, "INVALID_PARAMETER", "within is 5"),
        ({"on": "k", "suffix": None}, "INVALID_PARAMETER", "suffix=None"),
        ({"on": "k", "diff": ""}, "INVALID_PARAMETER", "diff=''"),
        ({"on": "k", "diff": "v"}, "DUPLICATE_COLUMN", 'two columns "v"'),
    ],
)
def test_refusals(options, condition, text):
    with pytest.raises(Error) as caught:
        Query(Options(**options))
    assert caught.value.condition == condition
    assert text in str(caught.value)


@pytest.mark.parametrize("buckets", ["2", 0, 1 << 16, 2.0, True, None])
def test_what_is_no_number_of_buckets(buckets):
    with pytest.raises(Error, match="a number from 1 to 65535") as caught:
        build(given(), given(), Options(on="k"), buckets)
    assert caught.value.condition == "INVALID_PARAMETER"


def test_arguments_of_matches():
    for wrong in (lambda: asof("ts", "ts", allow_exact_matches="no"), lambda: latest(5), lambda: asof("ts", None)):
        with pytest.raises(Error) as caught:
            wrong()
        assert caught.value.condition == "INVALID_PARAMETER"


def test_lists_are_pairs():
    for times, bounds in ((("ts", "ts"), ("0 seconds", None)), (["ts", "ts"], ["0 seconds", None])):
        query = Query(Options(on=["k"], within=bounds, time=times))
        query.batch([(1, at(1), "a")], [(1, at(1), "x"), (1, at(0), "y")])
        assert query.content == Counter([(1, at(1), "a", at(1), "x")])


def test_a_watermark_is_not_ahead_of_the_times():
    with pytest.raises(Error, match="the delay of a watermark can't be negative") as caught:
        Query(Options(on="k"), given(), given(watermark=("ts", -1)))
    assert "right_watermark" in str(caught.value)


def test_a_stream_is_needed():
    with pytest.raises(Error, match="neither side of the join is a stream"):
        Query(Options(on="k"), given(streaming=False), given(streaming=False))
