"""Hot keys are found, shown and split, and then no bucket has much more work than the others."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
from tests.trees import group, join, scan, sink_of

import watersmeet
from watersmeet.circuit.circuit import Roles, meetings, roles
from watersmeet.kernel.arrays.hashing import bucket_of_one
from watersmeet.kernel.runs import shares
from watersmeet.kernel.runs.shares import HASHES, HashRange, RunRef
from watersmeet.planner import assemble, compile_view
from watersmeet.runtime import splitting, tasks
from watersmeet.runtime.handover import _Move
from watersmeet.system.blobs import BlobRef

a, b, c = (scan(n) for n in "abc")


def circuit_of(*trees, buckets=4):
    views = {}
    for number, tree in enumerate(trees):
        views[f"v{number}"] = compile_view(tree, sink_of(tree, f"v{number}"), {})
    return assemble(views.values(), buckets)


def spread_sides(*trees, **options):
    """The relations of whose rows keys can be split."""
    circuit = circuit_of(*trees, **options)
    found = set()
    for meeting in meetings(circuit):
        for side in meeting.spread_sides:
            below = circuit.by_id[side]
            while below.inputs:
                below = circuit.by_id[below.inputs[0]]
            found.add(below.relation_id)
    return found


@pytest.mark.parametrize(("trees", "expected"), [
    ([join(a, b, "inner", "a.k = b.k")], {"a", "b"}),
    ([join(a, b, "left", "a.k = b.k")], {"a"}),
    ([join(a, b, "right", "a.k = b.k")], {"b"}),
    ([join(a, b, "semi", "a.k = b.k")], {"a"}),
    ([join(a, b, "anti", "a.k = b.k")], {"a"}),
    ([join(a, b, "full", "a.k = b.k")], set()),
    ([join(a, b, "inner", "a.k = b.k", "a.x < b.x")], {"a", "b"}),
    ([join(a, b, "inner", "a.k = b.k"), join(a, b, "left", "a.k = b.k", "a.x < b.x")], {"a"}),
    ([join(a, b, "left", "a.k = b.k"), join(a, b, "right", "a.k = b.k", "a.x < b.x")], set()),
    ([join(join(a, b, "inner", "a.k = b.k"), c, "inner", "a.k = c.k")], {"a", "b", "c"}),
    # what is joined further, or counted, where it is needs all rows of a key
    ([join(join(a, b, "left", "a.k = b.k"), c, "left", "a.k = c.k")], set()),
    ([group(join(a, b, "inner", "a.k = b.k"), "a.k")], set()),
    ([group(join(a, b, "inner", "a.k = b.k"), "a.x")], {"a", "b"}),
    ([group(a, "a.k")], set()),
])  # fmt: skip
def test_which_side_can_be_split(trees, expected):
    assert spread_sides(*trees) == expected
    assert spread_sides(*trees, buckets=1) == set()


def test_what_is_not_split_is_copied():
    circuit = circuit_of(join(a, b, "inner", "a.k = b.k"))
    (meeting,) = meetings(circuit)
    one, other = meeting.exchanges
    found = roles(circuit, {one: (5, 7), other: (6,)})
    assert (found[one].split, found[one].copied) == ((5, 7), (6,))
    assert (found[other].split, found[other].copied) == ((6,), (5, 7))
    assert roles(circuit, {"exchange-of-old": (5,)}) == roles(circuit, {}) == {}


KEY = 3 << 61
HOME = bucket_of_one(KEY, 4)


@pytest.mark.parametrize("was", ["home", "split", "copied"])
@pytest.mark.parametrize("will", ["home", "split", "copied"])
def test_a_key_moves_from_anywhere_to_anywhere(was, will):
    """By bucket, which runs have rows of the key, and how."""
    given = {"home": Roles(), "split": Roles((KEY,)), "copied": Roles((), (KEY,))}
    before = [(RunRef(BlobRef(f"{bucket}.run", 0, 1000, 100)),) for bucket in range(4)]
    found = _Move((0,), 2, given[was], given[will], 4).moved(before)
    if was == will:
        assert found == before
        return
    for bucket, refs in enumerate(found):
        assert f"{bucket}.run" in {r.file for r in refs}, "all other keys stay where they are"
        had = {f"{b}.run" for b in range(4)} if was != "home" else {f"{HOME}.run"}
        of_key = [(r.file, is_spread(r)) for r in refs if r.file in had and reaches(r)]
        sources = {f"{b}.run" for b in range(4)} if was == "split" else {f"{HOME}.run"}
        if will == "split":
            assert set(of_key) == {(s, True) for s in sources}
        elif will == "copied" or bucket == HOME:
            assert set(of_key) == {(s, False) for s in sources}
        else:
            assert not of_key


def reaches(ref):
    """Whether a share is of hashes among which that of the key is."""
    return ref.narrowed(HashRange(((0,),), KEY, KEY + 1), HashRange(((0,),), 0, HASHES)) is not None


def is_spread(ref):
    """Whether a share is by the hash of the whole row as well."""
    return ref.share is not None and any(len(r.keys) == 2 for r in ref.share.ranges)


SETUP = """
CREATE TABLE l (k int, x int);
CREATE TABLE r (k int, y int);
CREATE MATERIALIZED VIEW joined AS SELECT l.k, l.x, r.y FROM l {} JOIN r ON l.k = r.k AND l.x < r.y;
"""
#: One row in three has the first key, the others have many.
ROWS = """
INSERT INTO l SELECT CASE WHEN g % 3 = 0 THEN 7 ELSE g % 1009 END, g FROM generate_series({0}, {1}) AS s(g);
INSERT INTO r SELECT CASE WHEN g % 3 = 0 THEN 7 ELSE g % 1013 END, g FROM generate_series({0}, {1}) AS s(g);
FLUSH
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["INNER", pytest.param("LEFT", marks=pytest.mark.slow)])
def test_no_bucket_has_much_more_work_than_the_others(kind):
    made = Counter()
    run_stage = tasks.run_stage

    def counted(circuit, stage, bucket, *rest):
        result = run_stage(circuit, stage, bucket, *rest)
        made[bucket] += sum(m.made_rows for m in result.metrics.values())
        return result

    def largest():
        counts = [made[b] for b in range(4)]
        made.clear()
        return max(counts) * 4 / sum(counts)

    with (
        watersmeet.connect(runtime="inprocess", parallelism=4) as connection,
        mock.patch.object(tasks, "run_stage", counted),
        mock.patch.object(splitting, "SEARCH_ROWS", 1000),
        mock.patch.object(shares, "LEAST_ROWS", 100),
    ):
        connection.execute(SETUP.format(kind) + ROWS.format(1, 3000))
        assert largest() > 3.5
        connection.execute(ROWS.format(3001, 6000))
        log = connection._session.database.log
        assert [len(keys) for keys in log.progress().split.values()] == [1]
        made.clear()
        connection.execute(ROWS.format(6001, 9000))
        assert largest() < 1.5
        query = f"SELECT l.k, l.x, r.y FROM l {kind} JOIN r ON l.k = r.k AND l.x < r.y"
        found, expected = (
            connection.execute(f"SELECT count(*), sum(x * 7 + coalesce(y, 3)) FROM ({q}) AS q").fetchone()
            for q in ("SELECT * FROM joined", query)
        )
        assert found == expected
        shown = connection.execute("SHOW JOBS LIKE 'joined'")
        (job,) = shown.fetchall()
        hot_keys = dict(zip([column[0] for column in shown.description], job, strict=True))["hot_keys"]
        assert hot_keys.startswith("7: "), job
        assert " rows (split)" in hot_keys
