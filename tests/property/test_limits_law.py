"""Random histories of views with limits: one that stops keeps what it showed, all others follow their inputs. TP-24.

The reference is the join in plain Python. What a view keeps in bytes is the engine's own: where one stops is not
predicted, but a view without a limit never does, one that is stopped stays so, and one that goes on holds no more than
its limit.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow
from watersmeet import Error


def run(seed, tmp_path):
    rng = random.Random(seed)
    open_ = partial(watersmeet.connect, tmp_path / "db", "timeplus", runtime="inprocess")
    connection = open_(parallelism=rng.choice([1, 2, 3]))
    left: dict[int, str] = {}
    right: dict[int, str] = {}
    limits: dict[str, int | None] = {}
    shown: dict[str, int] = {}
    stopped: set[str] = set()

    def joined():
        return Counter((i, j) for i, k in left.items() for j, m in right.items() if k == m)

    def expected(view):
        pairs = joined()
        return Counter({(sum(pairs.values()),): 1}) if view.startswith("above_") else pairs

    def create(name):
        limits[name] = rng.choice([None, 1000, 3000, 10_000])
        setting = "" if limits[name] is None else f" SETTINGS join_max_buffered_bytes = {limits[name]}"
        try:
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT i, j FROM l JOIN r ON l.k = r.k{setting}")
        except Error as err:
            assert err.condition == "BUFFER_LIMIT", (seed, name)
            assert limits.pop(name) is not None
            return
        if rng.random() < 0.5:
            limits[f"above_{name}"] = None
            connection.execute(f"CREATE MATERIALIZED VIEW above_{name} AS SELECT count(*) AS n FROM {name}")

    def check():
        cursor = connection.execute("SHOW JOBS")
        names = [d[0] for d in cursor.description]
        jobs = {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
        assert jobs.keys() == limits.keys(), seed
        for view, job in jobs.items():
            if job["state"] == "failed":
                below = view.removeprefix("above_")
                assert limits[below] is not None, (seed, view)
                assert jobs[below]["state"] == "failed", (seed, view)
                stopped.add(view)
                assert job["rows"] == shown.get(view, job["rows"]), (seed, view)
                with pytest.raises(Error) as found:
                    connection.execute(f"SELECT * FROM table({view})")
                assert found.value.condition == ("BUFFER_LIMIT" if view == below else "VIEW_FAILED")
                continue
            assert view not in stopped, (seed, view)
            content = Counter(connection.execute(f"SELECT * FROM table({view})").fetchall())
            assert content == expected(view), (seed, view)
            shown[view] = job["rows"]
            if limits[view] is not None:
                assert job["state_bytes"] <= limits[view], (seed, view)

    try:
        connection.execute(
            "CREATE MUTABLE STREAM l(i int, k string) PRIMARY KEY i; CREATE MUTABLE STREAM r(j int, k "
            "string) PRIMARY KEY j"
        )
        for number in range(rng.randrange(6, 16)):
            step = rng.random()
            if step < 0.3 and len(limits) < 6:
                create(f"v{number}")
            elif step < 0.4 and limits:
                name = rng.choice(sorted(limits)).removeprefix("above_")
                connection.execute(f"DROP VIEW {name} CASCADE")
                for view in (name, f"above_{name}"):
                    limits.pop(view, None)
                    shown.pop(view, None)
                    stopped.discard(view)
            elif step < 0.5:
                connection.close()
                connection = open_()
            elif step < 0.6 and left:
                gone = rng.sample(sorted(left), rng.randrange(1, len(left) + 1))
                connection.execute(f"DELETE FROM l WHERE i IN ({', '.join(map(str, gone))})")
                for i in gone:
                    del left[i]
            else:
                name, content, column = rng.choice([("l", left, "i"), ("r", right, "j")])
                came = {rng.randrange(200): f"key {rng.randrange(12)}" for _ in range(rng.choice([1, 5, 40]))}
                Harness(connection).deliver(name, [[str(i), k] for i, k in came.items()], [column, "k"])
                content.update(came)
            connection.execute("FLUSH")
            check()
    finally:
        connection.close()


@pytest.mark.parametrize("seed", mostly_slow([*range(4), *range(100, 112)], 2))
def test_views_that_are_not_stopped_follow_their_inputs(seed, tmp_path):
    run(seed, tmp_path)
