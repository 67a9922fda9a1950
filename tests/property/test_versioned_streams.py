"""Streams with a version column against a dict: the greatest version of each key stays, whatever the order of the rows,
transactions and restarts; views over them follow.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet

_MUTABLE = "CREATE MUTABLE STREAM c(k int, v int, n int) PRIMARY KEY k SETTINGS version_column = 'v'"
_CHANGELOG = "CREATE STREAM c(k int, v int, n int) PRIMARY KEY k SETTINGS mode = 'changelog_kv', version_column = 'v'"

#: How a stream is declared, whether rows have a sign, and whether the first of equal versions stays.
STREAMS = {
    "mutable": (_MUTABLE, False, False),
    "first stays": (f"{_MUTABLE}, late_insert_overrides = false", False, True),
    "signs": (_CHANGELOG, True, False),
}


def write(content, rows, *, first_stays):
    """What is left by key when (k, v, n, sign) are written together: the newest row of each key counts."""
    last = {}
    for row in rows:
        k, v = row[:2]
        held = last[k][1] if k in last else None
        if held is None or v > held or (v == held and not first_stays):
            last[k] = row
    for k, (_, v, n, sign) in last.items():
        held = content[k][0] if k in content else None
        if held is not None and (v < held or (v == held and first_stays)):
            continue
        if sign > 0:
            content[k] = (v, n)
        else:
            content.pop(k, None)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4, 6))])
def test_the_greatest_version_stays(kind, seed, tmp_path):
    rng = random.Random(f"{kind} {seed}")
    create, signed, first_stays = STREAMS[kind]
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
    connection.execute(create)
    connection.execute("CREATE MATERIALIZED VIEW s AS SELECT v, count() AS rows, sum(n) AS total FROM c GROUP BY v")
    content: dict[int, tuple[int, int]] = {}
    discarded = 0
    for number in range(8):
        if number == 4:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        in_transaction = rng.random() < 0.3
        if in_transaction:
            connection.execute("BEGIN")
        for _ in range(rng.randint(1, 2)):
            rows = [
                (rng.randrange(4), rng.randrange(6), rng.randrange(100), -1 if signed and rng.random() < 0.3 else 1)
                for _ in range(rng.randint(1, 5))
            ]
            before = dict(content)
            write(content, rows, first_stays=first_stays)
            discarded += content == before
            sign = ", _tp_delta" if signed else ""
            values = ", ".join(str(row if signed else row[:3]) for row in rows)
            connection.execute(f"INSERT INTO c(k, v, n{sign}) VALUES {values}")
        if in_transaction:
            connection.execute("COMMIT")
        connection.flush()
        found = connection.execute("SELECT k, v, n FROM table(c)").fetchall()
        assert Counter(found) == Counter((k, *rest) for k, rest in content.items())
        groups = Counter(v for v, _ in content.values())
        totals = {v: sum(n for w, n in content.values() if w == v) for v in groups}
        seen = connection.execute("SELECT v, rows, total FROM table(s)").fetchall()
        assert {v: (rows, total) for v, rows, total in seen} == {v: (groups[v], totals[v]) for v in groups}
    assert discarded
    connection.close()


class Wide:
    """The rows of a coalesced stream by key, with its column families."""

    FAMILIES = (("a", "b"), ("c",), ("d",))

    def __init__(self):
        self.content = {}

    def write(self, named, rows):
        """Writes some columns of rows."""
        if any(0 < sum(c in named for c in f) < len(f) for f in self.FAMILIES):
            return
        for k, *values in rows:
            row = self.content.setdefault(k, dict.fromkeys("abcd", 0))
            row.update(zip(named, values, strict=True))


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 6))])
def test_rows_of_a_coalesced_stream_keep_what_a_writer_omits(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
    connection.execute(
        "CREATE MUTABLE STREAM w(k int, a int, b int, c int, d int, total int MATERIALIZED a + b + c + d, "
        "FAMILY ab (a, b), FAMILY c (c)) PRIMARY KEY k SETTINGS coalesced = true"
    )
    connection.execute("CREATE STREAM s(k int, n int)")
    connection.execute("CREATE MATERIALIZED VIEW of_s INTO w AS SELECT k, n AS c FROM s")
    connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT a, sum(total) AS t FROM w GROUP BY a")
    wide = Wide()
    for number in range(8):
        if number == 4:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        in_transaction = rng.random() < 0.3
        if in_transaction:
            connection.execute("BEGIN")
        for _ in range(rng.randint(1, 3)):
            named = rng.choice(["ab", "c", "d", "abcd", "cd", "a", "bc"])
            rows = [tuple(rng.randrange(5) for _ in f"k{named}") for _ in range(rng.randint(1, 3))]
            wide.write(named, rows)
            columns, values = ", ".join(f"k{named}"), ", ".join(map(str, rows))
            connection.execute(f"INSERT INTO w({columns}) VALUES {values}")
        if in_transaction:
            connection.execute("COMMIT")
        if rng.random() < 0.5:
            rows = [(rng.randrange(5), rng.randrange(5))]
            connection.execute(f"INSERT INTO s(k, n) VALUES {rows[0]}")
            connection.flush()
            wide.write("c", rows)
        connection.flush()
        expected = Counter((k, *row.values(), sum(row.values())) for k, row in wide.content.items())
        assert Counter(connection.execute("SELECT k, a, b, c, d, total FROM table(w)").fetchall()) == expected
        sums = Counter()
        for row in wide.content.values():
            sums[row["a"]] += sum(row.values())
        assert dict(connection.execute("SELECT a, t FROM table(sums)").fetchall()) == dict(sums)
    connection.close()
