"""Conflict rules and version columns of tables, which INSERT, a sink and files write, against a dict.

RisingWave, "CREATE TABLE", "PK conflict behavior".
"""

from __future__ import annotations

import json
import random

import pytest

import watersmeet

RULES = {
    "ON CONFLICT DO NOTHING": ("ignore", None),
    "ON CONFLICT DO UPDATE IF NOT NULL": ("fill", None),
    "ON CONFLICT OVERWRITE WITH VERSION COLUMN(v)": ("overwrite", "v"),
    "ON CONFLICT DO UPDATE IF NOT NULL WITH VERSION COLUMN(v)": ("fill", "v"),
}


def put(content, row, action, version):
    """Writes a row (k, v, a, b) into a dict by key."""
    there = content.get(row["k"])
    if there is not None and action == "ignore":
        return
    if there is not None and version is not None:
        before, now = there[version], row[version]
        if before is not None and (now is None or now < before):
            return
    if there is not None and action == "fill":
        row = {c: there[c] if row[c] is None else row[c] for c in row}
    content[row["k"]] = row


def some_row(rng):
    return {
        "k": rng.randrange(4),
        "v": rng.choice([None, 1, 2, 3]),
        "a": rng.choice([None, "x", "y"]),
        "b": rng.choice([None, 0.5, 1.5]),
    }


def literal(row):
    return "(" + ", ".join("NULL" if v is None else repr(v) for v in row.values()) + ")"


def rows_of(content):
    return sorted((tuple(r.values()) for r in content.values()), key=str)


@pytest.mark.parametrize("clause", RULES)
@pytest.mark.parametrize(("seed", "steps"), [(1, 6), pytest.param(2, 60, marks=pytest.mark.slow)])
def test_inserted_rows_follow_the_rule(clause, seed, steps, tmp_path):
    rng, (action, version) = random.Random(seed), RULES[clause]
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2)
    connection.show_own_writes()
    connection.execute(f"CREATE TABLE t (k int PRIMARY KEY, v int, a varchar, b double precision) {clause}")
    connection.execute("CREATE MATERIALIZED VIEW m AS SELECT k, v, a, b FROM t")
    content: dict[int, dict] = {}
    for step in range(steps):
        kind = rng.choice(["insert", "insert", "insert", "update", "delete"])
        if kind == "insert":
            rows = [some_row(rng) for _ in range(rng.randint(1, 6))]
            connection.execute(f"INSERT INTO t VALUES {', '.join(map(literal, rows))}")
            for row in rows:
                put(content, row, action, version)
        elif kind == "update":
            connection.execute("UPDATE t SET v = 2, a = NULL WHERE k = 1")
            if 1 in content:
                content[1] = {**content[1], "v": 2, "a": None}
        else:
            connection.execute("DELETE FROM t WHERE k = 2")
            content.pop(2, None)
        if step == steps // 2:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2)
            connection.show_own_writes()
        connection.flush()
        assert sorted(connection.execute("SELECT * FROM t").fetchall(), key=str) == rows_of(content)
        assert sorted(connection.execute("SELECT * FROM m").fetchall(), key=str) == rows_of(content)
    connection.close()


@pytest.mark.parametrize("clause", RULES)
def test_rows_of_files_and_of_a_sink_follow_the_rule(clause, tmp_path):
    rng, (action, version) = random.Random(4), RULES[clause]
    (tmp_path / "in").mkdir()
    columns = "(k int PRIMARY KEY, v int, a varchar, b double precision)"
    read = f"CREATE TABLE r {columns} {clause} WITH (connector = 'file', path = '{tmp_path / 'in'}', format = 'json')"
    files: dict[int, dict] = {}
    sunk: dict[int, dict] = {}
    for number in range(3):
        rows = [some_row(rng) for _ in range(7)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in" / f"{number}.json").write_text(text)
        with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
            if not number:
                connection.execute(f"{read}; CREATE TABLE s {columns} {clause}")
                connection.execute("CREATE TABLE log (k int, v int, a varchar, b double precision) APPEND ONLY")
                connection.execute("CREATE SINK fed INTO s FROM log WITH (type = 'append-only')")
            connection.execute(f"INSERT INTO log VALUES {', '.join(map(literal, rows))}")
            connection.flush()
            for row in rows:
                put(files, row, action, version)
                put(sunk, row, action, version)
            assert sorted(connection.execute("SELECT * FROM r").fetchall(), key=str) == rows_of(files)
            assert sorted(connection.execute("SELECT * FROM s").fetchall(), key=str) == rows_of(sunk)
