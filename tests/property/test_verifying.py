"""VERIFY over random histories: it never reports a difference where there is none, and finds each planted defect.

Law: a view is `proven` at every kept commit, or `not provable` with a reason that its query alone determines (or late
rows). With a step of an operator that loses or repeats a row, the views that use it differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

import watersmeet
from tests.thorough import mostly_slow
from tests.waiting import until
from watersmeet.kernel.operators import STEPS
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.matching import Arranged
from watersmeet.kernel.runs.run import Run

TABLES = (
    "CREATE TABLE t (k int PRIMARY KEY, g int, n numeric, f double precision, s varchar); "
    "CREATE TABLE u (g int, w int, a int[]); CREATE TABLE l (k int, x int) APPEND ONLY; "
    "CREATE TABLE p (g int, w int, v int, PRIMARY KEY (g, w)); "
    "CREATE TABLE e (k int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) APPEND ONLY"
)

#: Queries that can be proven, with the kinds of operators that compute them.
PROVEN: dict[str, tuple[str, set[str]]] = {
    "filtered": (
        "SELECT k + 1 AS k, upper(s) AS s, f FROM t WHERE g > 1",
        {"map"},
    ),
    "pairs": (
        "SELECT t.k, u.w FROM t JOIN u ON t.g = u.g",
        {"arrange", "join"},
    ),
    "pairs_or_not": (
        "SELECT t.k, t.g, u.w FROM t FULL JOIN u ON t.g = u.g AND u.w > 2",
        {"join"},
    ),
    "semi": (
        "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g)",
        {"join"},
    ),
    "anti": (
        "SELECT k FROM t WHERE g NOT IN (SELECT g FROM u WHERE g IS NOT NULL)",
        {"join"},
    ),
    "chain": (
        "SELECT t.k, u.w, l.x FROM t JOIN u ON t.g = u.g JOIN l ON l.k = t.g",
        {"multijoin"},
    ),
    "grouped": (
        "SELECT g, count(*) AS c, sum(n) AS n, min(s) AS s, max(f) AS f, avg(k) AS a FROM t GROUP BY g",
        {"aggregate"},
    ),
    "grouped_pairs": (
        "SELECT t.g, count(*) AS c, sum(t.n) AS n, sum(u.w) AS w FROM t LEFT JOIN u ON t.g = u.g GROUP BY t.g",
        {"groupjoin"},
    ),
    "distinct_rows": (
        "SELECT DISTINCT g, s FROM t",
        {"aggregate"},
    ),
    "sets": (
        "SELECT g, s, count(*) AS c FROM t GROUP BY GROUPING SETS ((g), (s), ())",
        {"aggregate"},
    ),
    "whole": (
        "SELECT count(*) AS c, count(DISTINCT g) AS d FROM t",
        {"aggregate"},
    ),
    "top": (
        "SELECT k, g FROM t ORDER BY k DESC LIMIT 3",
        {"topn"},
    ),
    "top_of_group": (
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY g ORDER BY k) AS r FROM t) WHERE r <= 2",
        {"topn"},
    ),
    "windowed": (
        "SELECT k, sum(k) OVER (PARTITION BY g ORDER BY k) AS s, lag(k) OVER (PARTITION BY g ORDER BY k) AS b FROM t",
        {"window"},
    ),
    "ranked": (
        "SELECT k, rank() OVER (ORDER BY g) AS r FROM t",
        {"window"},
    ),
    "united": (
        "SELECT k, g FROM t UNION ALL SELECT x, k FROM l",
        {"union"},
    ),
    "excepted": (
        "SELECT g FROM t EXCEPT ALL SELECT g FROM u",
        {"repeat"},
    ),
    "listed": (
        "SELECT u.g, x FROM u, unnest(u.a) AS x",
        {"unnest"},
    ),
    "nearest": (
        "SELECT t.k, p.v FROM t ASOF JOIN p ON t.g = p.g AND t.k >= p.w",
        {"asof"},
    ),
    "nearest_or_not": (
        "SELECT t.k, p.w, p.v FROM t ASOF LEFT JOIN p ON t.g = p.g AND t.k < p.w AND p.v > 1",
        {"asof"},
    ),
    "beyond": (
        "SELECT k FROM t WHERE k > (SELECT max(w) FROM u)",
        {"dynamicfilter"},
    ),
    "recent": (
        "SELECT k, ts FROM e WHERE ts > now() - INTERVAL '1 day' OR k = 3",
        {"timefilter"},
    ),
    "old": (
        "SELECT k, ts FROM e WHERE ts < now() - INTERVAL '1 day' AND k > 1",
        {"timefilter"},
    ),
    "final": (
        "SELECT window_start, count(*) AS c FROM TUMBLE(e, ts, INTERVAL '1 minute') GROUP BY 1 EMIT ON WINDOW CLOSE",
        {"timefilter"},
    ),
    "on_arrival": (
        "SELECT l.k, l.x, m.x AS y FROM l JOIN l AS m ON l.k = m.x EMIT ON ARRIVAL",
        {"join"},
    ),
    "with_a_row": (
        "SELECT k FROM t UNION ALL SELECT 7",
        {"constant"},
    ),
    "above": (
        "SELECT grouped.g, c, w FROM grouped JOIN u ON u.g = grouped.g WHERE c > 1",
        {"join"},
    ),
    "scalar": (
        "SELECT k, (SELECT max(w) FROM u WHERE u.g = t.g) AS m FROM t",
        {"aggregate", "join"},
    ),
}

#: Queries that can't be proven, with a part of the reason.
UNPROVABLE = {
    "floats": (
        "SELECT sum(f) AS f FROM t",
        "sum of floating-point numbers depends on the order of rows",
    ),
    "listing": (
        "SELECT g, array_agg(k) AS l FROM t GROUP BY g",
        "array_agg depends on the order of rows",
    ),
    "ties": (
        "SELECT k, g FROM t ORDER BY g LIMIT 2",
        "its first rows may be equal in ORDER BY",
    ),
}

#: Queries of which a part can be proven, with the kinds of their operators and the reason.
PARTLY = {
    "looked_up": (
        "SELECT l.k, l.x, t.s FROM l JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON l.x = t.k WHERE l.k > 0",
        {"temporal"},
        "it looks rows up when others arrive; proven: k, x of all rows, not that none is missing",
    ),
    "looked_up_or_not": (
        "SELECT l.k + 1 AS k, t.s, l.x FROM l LEFT JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON l.x = t.k WHERE l.k > 0",
        {"temporal"},
        "it looks rows up when others arrive; proven: k, x",
    ),
    "looked_up_twice": (
        "SELECT t.k, o.s FROM t LEFT JOIN t FOR SYSTEM_TIME AS OF PROCTIME() AS o ON t.g = o.k",
        {"temporal"},
        "it looks rows up when others arrive; proven: k",
    ),
}

PARTLY |= {
    "tied": (
        "SELECT k, row_number() OVER (ORDER BY g) AS r FROM t",
        {"window"},
        "rows may be equal in the order of row_number, and no key of the query orders these; proven: k",
    ),
    "or_not_on_arrival": (
        "SELECT l.k, l.x, m.x AS y FROM l LEFT JOIN l AS m ON l.k = m.x EMIT ON ARRIVAL",
        {"arrivaljoin"},
        "partners are determined when rows arrive; proven: k, x, y of all rows, not that none is missing",
    ),
    "full_on_arrival": (
        "SELECT l.k, m.x AS y FROM l FULL JOIN l AS m ON l.k = m.x AND l.x > 1 EMIT ON ARRIVAL",
        {"arrivaljoin"},
        "partners are determined when rows arrive; proven: k, y of all rows, not that none is missing",
    ),
    "semi_on_arrival": (
        "SELECT k, x FROM l WHERE EXISTS (SELECT 1 FROM t WHERE t.g = l.k) EMIT ON ARRIVAL",
        {"arrivaljoin"},
        "partners are determined when rows arrive; proven: k, x of all rows, not that none is missing",
    ),
    "nearest_on_arrival": (
        "SELECT l.k, l.x, p.v FROM l ASOF LEFT JOIN p ON l.k = p.g AND l.x >= p.w EMIT ON ARRIVAL",
        {"arrivalasof"},
        "partners are determined when rows arrive; proven: k, x",
    ),
}

#: The kinds of operators whose output VERIFY does not compute, and why.
NOT_COMPUTED = {
    "arrivals": "its rows are computed, not their order: `test_rows_of_other_dialects`",
    "changelog": "DuckDB has no equivalent",
    "changes": "DuckDB has no equivalent",
    "cut": "it is computed for streams without rows at its start: `test_late_rows_of_views`",
    "laterowfilter": "it is computed with the late rows that are kept: `test_late_rows_of_views`",
    "records": "they are computed, not their numbers: `test_rows_of_other_dialects`",
    "session": "DuckDB has no equivalent",
    "sliding": "its rows are computed, not their windows: `test_rows_of_other_dialects`",
    "sort": "only batches of DataFrames are sorted",
    "upsert": "it makes the content of tables, which are inputs",
    "versions": "DuckDB has no equivalent",
}


def test_each_kind_of_operator_is_computed_or_has_a_reason() -> None:
    computed = {kind for _, kinds in PROVEN.values() for kind in kinds}
    computed |= {kind for _, kinds, _ in PARTLY.values() for kind in kinds}
    assert not computed & NOT_COMPUTED.keys()
    assert computed | NOT_COMPUTED.keys() == STEPS.keys()


def opened(path: Path, seed: int = 0, parallelism: int = 1) -> watersmeet.Connection:
    return watersmeet.connect(path, runtime="inprocess", parallelism=parallelism + seed % 2)


def made(connection: watersmeet.Connection) -> None:
    connection.execute("ALTER SYSTEM SET retention = '1 day'")
    connection.execute(TABLES)
    for name, (query, *_) in (PROVEN | UNPROVABLE | PARTLY).items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")


def changed(connection: watersmeet.Connection, random: Random) -> None:
    k, g = random.randrange(12), random.choice(["NULL", *map(str, range(4))])
    s, f = random.choice(["NULL", "''", "'a'", "'b'"]), random.choice(["NULL", "'NaN'", "-0.0", "0.5", "1e300"])
    a = random.choice(["NULL", "ARRAY[]::int[]", "ARRAY[1, NULL]", "ARRAY[2, 2, 3]"])
    connection.execute(
        random.choice(
            [
                f"INSERT INTO t VALUES ({k}, {g}, {k}.25, {f}, {s}), ({k + 1}, {g}, NULL, 0.5, 'c')",
                f"INSERT INTO u VALUES ({g}, {k % 5}, {a}), ({g}, {k % 5}, {a})",
                f"INSERT INTO l VALUES ({k % 4}, {k})",
                f"DELETE FROM t WHERE k = {k}",
                f"DELETE FROM u WHERE w = {k % 5}",
                f"UPDATE t SET g = {g}, s = {s} WHERE k < {k}",
                f"INSERT INTO e VALUES ({k}, '2024-01-01 00:0{k % 10}:00')",
                f"INSERT INTO e VALUES ({k}, '2024-01-01 00:0{k % 10}:00')",
                *([f"INSERT INTO e VALUES ({k}, now()::timestamp)"] if random.random() < 0.1 else []),
                f"INSERT INTO p VALUES ({k % 4}, {k}, {k % 3})",
                f"DELETE FROM p WHERE w = {k}",
            ]
        )
    )


def outcomes(connection: watersmeet.Connection, commit: int | None = None) -> dict[str, tuple[Any, ...]]:
    moment = "" if commit is None else f" AT COMMIT {commit}"
    return {row[0]: row for row in connection.execute(f"VERIFY{moment}").fetchall()}


@pytest.mark.parametrize("seed", mostly_slow(range(6), 1))
def test_nothing_right_differs(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    connection = opened(tmp_path / "db", seed)
    made(connection)
    commits = []
    for _ in range(6):
        for _ in range(random.randrange(1, 6)):
            changed(connection, random)
        connection.execute("FLUSH")
        commits.append(connection._session.database.log.head())
        if random.random() < 0.3:
            connection.close()
            connection = opened(tmp_path / "db", seed)
    changed(connection, random)
    for commit in (None, commits[-1], random.choice(commits)):
        found = outcomes(connection, commit)
        assert found.keys() == PROVEN.keys() | UNPROVABLE.keys() | PARTLY.keys()
        for name in PROVEN:
            assert found[name][2:6] == ("proven", 0, 0, None), (commit, found[name])
        for name, (_, reason) in UNPROVABLE.items():
            assert found[name][2:5] == ("not provable", None, None)
            assert reason in found[name][5]
        for name, (*_, reason) in PARTLY.items():
            assert found[name][2:6] == ("partly proven", 0, 0, reason)
    shown = connection.execute("SHOW VERIFICATIONS FROM pairs").fetchall()
    assert len(shown) == 3
    connection.close()


def losing(step: Callable[..., Any], *arguments: Any) -> Any:
    """The step without the first row of its output."""
    found = step(*arguments)
    if isinstance(found, Arranged):
        change = found.change
        if change.num_rows:
            diff = None if change.diff is None else change.diff[1:]
            change = Run(change.hash[1:], change.columns.slice(1), diff, change.keys, pure=True)
        return Arranged(change, found.null_keys, lambda: found.runs_before, exact=found.exact)
    return found.take(np.arange(1, found.num_rows)) if isinstance(found, Delta) and found.num_rows else found


def repeating(step: Callable[..., Any], *arguments: Any) -> Any:
    """The step with the first row of its output twice."""
    found = step(*arguments)
    if isinstance(found, Delta) and found.num_rows:
        return found.take(np.concatenate([[0], np.arange(found.num_rows)]))
    return found


@pytest.mark.parametrize("fault", [losing, repeating])
@pytest.mark.parametrize("kind", sorted(STEPS.keys() - NOT_COMPUTED.keys()))
def test_a_defect_of_each_operator_is_found(tmp_path: Path, kind: str, fault: Callable[..., Any]) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute(TABLES)
        queries = {name: query for name, (query, kinds, *_) in (PROVEN | PARTLY).items() if kind in kinds}
        if kind == "temporal":  # of inner look-ups, rows may be missing
            queries = {"looked_up_or_not": queries["looked_up_or_not"]}
        name, query = next(iter(queries.items()))
        if kind != "constant":
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        calls = []

        def planted(*arguments: Any) -> Any:
            calls.append(kind)
            return fault(step, *arguments)

        step = STEPS[kind]
        with mock.patch.dict(STEPS, {kind: planted}):
            connection.execute(
                "INSERT INTO t VALUES (1, 2, 1.5, 0.5, 'a'), (2, 2, 1.5, 0.5, 'b'), (3, 3, 2.5, 0.5, 'c'), "
                "(9, 3, 2.5, 0.5, 'c'); INSERT INTO u VALUES (2, 3, ARRAY[1, 2]), (3, 4, ARRAY[3]); "
                "INSERT INTO l VALUES (2, 1), (3, 2); INSERT INTO p VALUES (2, 1, 4), (3, 1, 5); "
                "INSERT INTO e VALUES (5, now()::timestamp), (6, now()::timestamp); FLUSH"
            )
            if kind == "constant":  # its rows are output once, by the first epoch of the view
                connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
                connection.execute("FLUSH")
        if kind == "arrange" and fault is repeating:
            return  # an arrangement is not a change
        assert calls
        found = outcomes(connection)
        if kind == "arrivaljoin" and fault is losing:  # the view may lack rows
            assert found[name][2] == "partly proven"
            return
        assert found[name][2] == "differs", found
        assert sum(found[name][3:5]) > 0


def test_verify_says_what_it_can_not_prove(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute(
            "CREATE TABLE e (k int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) APPEND ONLY"
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT k FROM e")
        connection.execute("INSERT INTO e VALUES (1, '2024-01-01 00:01:00'); FLUSH")
        assert outcomes(connection)["v"][2] == "proven"
        before = connection._session.database.log.head()
        connection.execute("INSERT INTO e VALUES (2, '2024-01-01'); FLUSH")
        assert outcomes(connection)["v"][2] == outcomes(connection, before)["v"][2] == "proven"
        for text, condition, place in (
            ("VERIFY VIEW e", "CATALOG_TYPE_MISMATCH", "e"),
            ("VERIFY VIEW nothing", "UNDEFINED_RELATION", "nothing"),
            ("VERIFY VIEW v AT COMMIT 1000", "INVALID_PARAMETER", "1000"),
            ("VERIFY AT COMMIT 1", "HISTORY_GONE", "1"),
            ("ALTER SYSTEM SET verify_rate = 'often'", "INVALID_PARAMETER", "verify_rate = 'often'"),
        ):
            with pytest.raises(watersmeet.Error) as refused:
                connection.execute(text)
            assert refused.value.condition == condition
            assert text[refused.value.span.start : refused.value.span.end] == place


LATE = "CREATE TABLE {} (k int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) APPEND ONLY"


def test_late_rows_are_left_out_where_a_view_left_them_out(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute(LATE.format("e"))
        connection.execute("ALTER SYSTEM SET retention = '1 day'; " + LATE.format("o"))
        connection.execute("CREATE MATERIALIZED VIEW early AS SELECT k FROM e WHERE k > 0")
        connection.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n FROM early")
        connection.execute("CREATE MATERIALIZED VIEW joined AS SELECT e.k, o.ts FROM e JOIN o ON e.k = o.k")
        for k, ts in ((1, "00:01:00"), (2, "00:00:00"), (2, "00:00:00"), (3, "00:02:00")):
            connection.execute(f"INSERT INTO e VALUES ({k}, '2024-01-01 {ts}'); INSERT INTO o TABLE e; FLUSH")
        connection.execute("CREATE MATERIALIZED VIEW late AS SELECT k + 1 AS k FROM e")
        assert sorted(connection.execute("SELECT k FROM early").fetchall()) == [(1,), (3,)]
        assert len(connection.execute("SELECT k FROM late").fetchall()) == 4
        assert {name: row[2] for name, row in outcomes(connection).items()} == dict.fromkeys(
            ("early", "total", "joined", "late"), "proven"
        )
        shown = connection.execute("SHOW VERIFICATIONS FROM early").fetchall()[0]
        statement = json.loads(shown[10])
        assert "EXCEPT ALL" in statement["sql"]
        assert len(statement["inputs"]) == 2
        step = STEPS["map"]
        with mock.patch.dict(STEPS, {"map": lambda *arguments: losing(step, *arguments)}):
            connection.execute("INSERT INTO e VALUES (4, '2024-01-01 00:03:00'); FLUSH")
        found = outcomes(connection)
        assert found["early"][2:5] == ("differs", 1, 0)  # it is known that it was there before the first late row
        assert found["late"][2:5] == ("differs", 1, 0)  # all late rows are older than this view


def test_infinite_times_are_final_as_in_the_view(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute(LATE.format("e"))
        connection.execute("CREATE MATERIALIZED VIEW final AS SELECT k, ts FROM e EMIT ON WINDOW CLOSE")
        connection.execute("CREATE MATERIALIZED VIEW coming AS SELECT k FROM e WHERE ts > now()")
        connection.execute("INSERT INTO e VALUES (1, '-infinity'), (2, '-infinity'); FLUSH")
        assert connection.execute("SELECT k FROM final").fetchall() == []
        assert [row[2] for row in outcomes(connection).values()] == ["proven", "proven"]
        connection.execute("INSERT INTO e VALUES (3, '2024-01-01'), (4, 'infinity'), (5, '2023-01-01'); FLUSH")
        assert sorted(connection.execute("SELECT k FROM final").fetchall()) == [(1,), (2,), (5,)]
        assert connection.execute("SELECT k FROM coming").fetchall() == [(4,)]
        assert [row[2] for row in outcomes(connection).values()] == ["proven", "proven"]


def test_late_rows_that_are_not_kept_prove_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute("ALTER SYSTEM SET late_rows_retention = 0; " + LATE.format("e"))
        connection.execute("CREATE MATERIALIZED VIEW early AS SELECT k FROM e WHERE k > 0")
        for k, ts in ((1, "00:01:00"), (2, "00:00:00")):
            connection.execute(f"INSERT INTO e VALUES ({k}, '2024-01-01 {ts}'); FLUSH")
        connection.execute("CREATE MATERIALIZED VIEW late AS SELECT k + 1 AS k FROM e; FLUSH")
        found = outcomes(connection)
        assert found["early"][5] == 'it is not known which of the late rows of table "e" it has: 1'
        assert found["late"][2] == "proven"


def test_views_are_verified_continuously(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (k int); CREATE MATERIALIZED VIEW a AS SELECT k FROM t")
        connection.execute("CREATE MATERIALIZED VIEW b AS SELECT count(*) AS n FROM t")
        connection.execute("ALTER SYSTEM SET verify_rate = 36000")
        until(lambda: {row[0] for row in connection.execute("SHOW VERIFICATIONS").fetchall()} == {"a", "b"})
        assert {row[2] for row in connection.execute("SHOW VERIFICATIONS").fetchall()} == {"proven"}
        connection.execute("ALTER SYSTEM RESET verify_rate")
    with opened(tmp_path / "db") as connection:
        assert connection.execute("SHOW VERIFICATIONS FROM a").fetchall()


def test_a_view_with_another_query_is_proven_from_then_on(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int); CREATE MATERIALIZED VIEW a AS SELECT k FROM t")
        connection.execute("CREATE MATERIALIZED VIEW b AS SELECT count(*) AS n FROM a")
        connection.execute("INSERT INTO t VALUES (1, 1), (2, 5); FLUSH")
        before = connection._session.database.log.head()
        assert {row[2] for row in outcomes(connection).values()} == {"proven"}
        connection.execute("ALTER MATERIALIZED VIEW a AS SELECT k FROM t WHERE v > 2")
        connection.execute("INSERT INTO t VALUES (3, 7); FLUSH")
        assert {row[2] for row in outcomes(connection).values()} == {"proven"}
        assert outcomes(connection, before)["a"][5] == "it had another query at this commit"
        assert outcomes(connection, before)["b"][2] in ("proven", "not provable")


def keys(folder: Path, number: int = 0) -> tuple[Path, Path]:
    """A private and a public key, made as the page of proofs says."""
    private, public = folder / f"private{number}.pem", folder / f"public{number}.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


#: The commands of the page, in `docs/OPERATIONS.md`.
CHECK = """
watersmeet query "SHOW VERIFICATIONS FROM totals" --path shop --json | head -1 > proof.json
jq -j .statement proof.json > statement.json
jq -r .signature proof.json | base64 -d > statement.sig
openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in statement.json -sigfile statement.sig
"""


def signed(connection: watersmeet.Connection) -> tuple[Any, ...]:
    """The result of VERIFY with its statement and signature."""
    (made,) = connection.execute("VERIFY VIEW totals").fetchall()
    newest: tuple[Any, ...] = connection.execute("SHOW VERIFICATIONS FROM totals").fetchall()[0]
    assert newest[: len(made)] == made
    return newest


@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "jq"))), reason="it runs openssl and jq")
def test_signed_statements_are_checked_by_the_commands_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "OPERATIONS.md").read_text()
    assert CHECK.strip() in page
    private, public = keys(tmp_path)
    other, _ = keys(tmp_path, 1)
    public.rename(tmp_path / "public.pem")
    with opened(tmp_path / "shop") as connection:
        connection.execute("CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 2), (1, 3), (2, 5)")
        connection.execute("CREATE MATERIALIZED VIEW totals AS SELECT k, sum(v) AS s FROM t GROUP BY k; FLUSH")
        unsigned = signed(connection)
        assert unsigned[2] == "proven"
        assert unsigned[-2:] == (None, "nobody")
        connection.execute(f"CREATE SECRET proofs WITH (backend = 'file', path = '{private}')")
        connection.execute("ALTER SYSTEM SET verify_key = proofs")
        made = signed(connection)
        fingerprint = made[-1]
        for text, condition in (
            ("ALTER SYSTEM SET verify_key = nothing", "UNDEFINED_OBJECT"),
            ("DROP SECRET proofs", "DEPENDENT_OBJECTS"),
            ("CREATE SECRET wrong WITH (backend = 'meta') AS 'abc'; ALTER SYSTEM SET verify_key = wrong", ""),
        ):
            with pytest.raises(watersmeet.Error) as refused:
                for part in text.split("; "):
                    connection.execute(part)
            assert refused.value.condition == (condition or "INVALID_PARAMETER")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "watersmeet").write_text(f'#!/bin/sh\nexec {sys.executable} -m watersmeet "$@"\n')
    (tmp_path / "watersmeet").chmod(0o700)
    checked = subprocess.run(
        ["bash", "-e", "-c", CHECK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout.strip()) == (0, "Signature Verified Successfully"), checked.stderr
    statement = json.loads((tmp_path / "statement.json").read_text())
    assert statement["computed"] == statement["content"]
    assert statement["inputs"]["t"]["rows"] == 3
    manifest = tmp_path / "shop" / "commits" / f"{statement['commit']:012d}.json"
    assert statement["manifest"] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert hashlib.sha256((tmp_path / "statement.json").read_bytes()).hexdigest() == made[-3]
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", "public.pem", "-outform", "DER"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    ).stdout
    assert fingerprint == hashlib.sha256(der).hexdigest()
    (tmp_path / "statement.json").write_text(json.dumps(statement | {"commit": 1}))
    forged = subprocess.run(
        ["bash", "-c", CHECK.strip().splitlines()[-1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert forged.returncode == 1
    private.unlink()
    with opened(tmp_path / "shop") as connection:
        with pytest.raises(watersmeet.Error) as lost:
            connection.execute("VERIFY")
        assert lost.value.condition == "RUNTIME_UNAVAILABLE"
        other.rename(private)
        made = signed(connection)
        assert made[-1] not in ("nobody", fingerprint)
        connection.execute("ALTER SYSTEM RESET verify_key")
        connection.execute("DROP SECRET proofs")
        assert signed(connection)[-1] == "nobody"
        shown = connection.execute("SHOW VERIFICATIONS").fetchall()
        assert [row[-1] for row in shown] == ["nobody", made[-1], fingerprint, "nobody"]
        connection.execute("DROP MATERIALIZED VIEW totals")
    assert list((tmp_path / "shop" / "sources").glob("*-verifications.json"))
    with opened(tmp_path / "shop") as connection:
        assert not list((tmp_path / "shop" / "sources").glob("*-verifications.json"))


#: Views of other dialects: the dialect, what they read, the query, rows, the operator with a defect, and the reason.
OTHERS = {
    "joined records": (
        "lenses",
        (
            "CREATE TABLE a (_key int, v int) FORMAT (int, avro); CREATE TABLE b (_key int, w int) FORMAT (int, avro); "
            "SET defaults.topic.autocreate = true"
        ),
        "INSERT INTO m SELECT STREAM a.v AS v, b.w AS w FROM a JOIN b ON a._key = b._key WITHIN 1h",
        "INSERT INTO a (_key, v) VALUES (1, 10), (1, 20), (2, 30); INSERT INTO b (_key, w) VALUES (1, 5), (2, 6)",
        "records",
        "its records are numbered by epochs; proven: v, w, _key, @time, @deleted",
    ),
    "substreams": (
        "timeplus",
        "CREATE STREAM a (k int, v int)",
        "CREATE MATERIALIZED VIEW m AS SELECT k, v, lag(v) OVER (PARTITION BY k) AS l FROM a",
        "INSERT INTO a (k, v) VALUES (1, 10), (1, 20), (2, 30)",
        "arrivals",
        "rows may be equal in the order of lag, and no key of the query orders these; proven: k, v",
    ),
    "windows": (
        "sqlstream",
        "CREATE STREAM a (k INTEGER, v INTEGER)",
        (
            "CREATE MATERIALIZED VIEW m AS SELECT STREAM k, v, "
            "SUM(v) OVER (PARTITION BY k RANGE INTERVAL '1' MINUTE PRECEDING) AS s FROM a"
        ),
        "INSERT INTO a (k, v) VALUES (1, 10), (1, 20), (2, 30)",
        "sliding",
        "its windows depend on the order in which rows arrived; proven: ROWTIME, K, V",
    ),
    "windowed join": (
        "sqlstream",
        "CREATE STREAM a (k INTEGER, v INTEGER); CREATE STREAM b (k INTEGER, w INTEGER)",
        (
            "CREATE MATERIALIZED VIEW m AS SELECT STREAM a.k, a.v, b.w FROM a OVER (RANGE INTERVAL '1' HOUR PRECEDING) "
            "AS a JOIN b OVER (RANGE INTERVAL '1' HOUR PRECEDING) AS b ON a.k = b.k"
        ),
        "INSERT INTO a (k, v) VALUES (1, 10), (1, 20); INSERT INTO b (k, w) VALUES (1, 5), (2, 6)",
        "join",
        None,
    ),
}


@pytest.mark.parametrize("fault", [losing, repeating])
@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_other_dialects(tmp_path: Path, name: str, fault: Callable[..., Any]) -> None:
    """What does not depend on the order of arrival is proven, and a defect is found."""
    dialect, inputs, query, rows, kind, reason = OTHERS[name]
    with watersmeet.connect(tmp_path / "db", dialect, runtime="inprocess") as connection:
        connection.execute(f"{inputs}; {query}; {rows}; FLUSH; {rows}; FLUSH")
        (found,) = connection.execute("VERIFY").fetchall()
        assert found[2:6] == ("proven" if reason is None else "partly proven", 0, 0, reason)
        assert found[6] > 0
        step = STEPS[kind]
        with mock.patch.dict(STEPS, {kind: lambda *arguments: fault(step, *arguments)}):
            connection.execute(f"{rows}; FLUSH")
        (found,) = connection.execute("VERIFY").fetchall()
        assert found[2] == "differs"
        assert sum(found[3:5]) > 0


def test_an_outer_join_that_revises_nothing(tmp_path: Path) -> None:
    """Each row is a pair or a row of a side; a row too many is found."""
    hour = "OVER (RANGE INTERVAL '1' HOUR PRECEDING)"
    with watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM a (k INTEGER, v INTEGER); CREATE STREAM b (k INTEGER, w INTEGER)")
        select = f"SELECT STREAM a.k, a.v, b.w FROM a {hour} AS a LEFT JOIN b {hour} AS b ON a.k = b.k"
        connection.execute(f"CREATE MATERIALIZED VIEW m AS {select}")
        rows = "INSERT INTO a (k, v) VALUES (1, 10), (3, 20); INSERT INTO b (k, w) VALUES (1, 5); FLUSH"
        connection.execute(rows)
        (found,) = connection.execute("VERIFY").fetchall()
        assert found[2:5] == ("partly proven", 0, 0)
        assert found[5].endswith("proven: ROWTIME, K, V, W of all rows, not that none is missing")
        step = STEPS["join"]
        with mock.patch.dict(STEPS, {"join": lambda *arguments: repeating(step, *arguments)}):
            connection.execute(rows)
        (found,) = connection.execute("VERIFY").fetchall()
        assert found[2] == "differs"
