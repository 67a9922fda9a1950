"""Look-ups in external tables with `lookup_max_age`, in random histories against the rule in plain Python.

The rule: an answer is what the table had when it was last checked, and before rows are looked up it is checked if that
was so long ago, or a statement has read it since. What an epoch found is what it finds when it runs again.
"""

from __future__ import annotations

import os
import random

import pytest

import watersmeet
from tests.harness import Harness
from tests.thorough import mostly_slow
from watersmeet.errors import Error

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US


class Model:
    """there: the rows in the file. seen: those that were there at the last check. checked_s: when; None: not yet."""

    def __init__(self, age_s):
        self.age_s = age_s
        self.there = {}
        self.seen = {}
        self.checked_s = None

    def check(self, now_s, always=False):
        if always or self.checked_s is None or not 0 <= now_s - self.checked_s < self.age_s:
            self.checked_s, self.seen = now_s, dict(self.there)


def run(seed, tmp_path):
    rng = random.Random(seed)
    path = tmp_path / "t.csv"
    model = Model(rng.choice([0, 1, 30, 300]))
    now_s = count = 0
    expected = []

    def write():
        model.there = {k: f"n{rng.randrange(1000)}" for k in range(4) if rng.random() < 0.8}
        path.with_suffix(".new").write_text("".join(f"{k},{v}\n" for k, v in model.there.items()))
        os.replace(path.with_suffix(".new"), path)

    def opened(parallelism=None):
        found = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=parallelism)
        Harness(found).set_clock(START_US + now_s * SECOND_US)
        return found

    write()
    connection = opened(rng.choice([1, 3]))
    age = rng.choice([f"{model.age_s}", f"{model.age_s}s"])
    settings = f"type='file', path='{path}', format='CSV', lookup_max_age='{age}'"
    connection.execute(f"CREATE EXTERNAL TABLE t(k int, v string) SETTINGS {settings}")
    model.check(now_s, always=True)
    connection.execute("CREATE STREAM s(n int, k int); SET dialect = 'risingwave'")
    look_up = "s LEFT JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON s.k = t.k"
    connection.execute(f"CREATE MATERIALIZED VIEW v AS SELECT n, v FROM {look_up}; SET dialect = 'timeplus'")
    model.check(now_s, always=True)
    for _ in range(14):
        step = rng.random()
        if step < 0.3:
            write()
        elif step < 0.5:
            now_s += rng.choice([1, 29, 30, 299, 300])
            Harness(connection).set_clock(START_US + now_s * SECOND_US)
        elif step < 0.6:
            connection.execute("SELECT count(*) FROM t")
            model.check(now_s, always=True)
        elif step < 0.7:
            connection.close()
            model.checked_s = None
            connection = opened()
        else:
            rows = [(count + i, rng.randrange(5)) for i in range(3)]
            count += 3
            values = ", ".join(map(str, rows))
            connection.execute(f"INSERT INTO s(n, k) VALUES {values}; FLUSH")
            model.check(now_s)
            expected += [(n, model.seen.get(k)) for n, k in rows]
    assert sorted(connection.execute("SELECT n, v FROM table(v)").fetchall()) == sorted(expected), seed
    connection.close()


@pytest.mark.parametrize("seed", mostly_slow(range(12), 2))
def test_answers_are_as_old_as_was_said(seed, tmp_path):
    run(seed, tmp_path)


def test_ages_that_are_none_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("1,a\n")
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        for age in ("soon", "-5s", ""):
            with pytest.raises(Error) as found:
                connection.execute(
                    f"CREATE EXTERNAL TABLE t(k int, v string) SETTINGS type='file', path='{tmp_path}/t.csv', "
                    f"format='CSV', lookup_max_age='{age}'"
                )
            assert (found.value.condition, "lookup_max_age" in found.value.message) == ("CONNECTOR_OPTION", True)
