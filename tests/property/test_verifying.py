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
    "CREATE TABLE u (g int, w int, a int[]); CREATE TABLE l (k int, x int) APPEND ONLY"
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
        {"aggregate", "constant"},
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
    "tied": (
        "SELECT k, row_number() OVER (ORDER BY g) AS r FROM t",
        "rows may be equal in the order of row_number",
    ),
    "looked_up": (
        "SELECT l.k, t.s FROM l JOIN t FOR SYSTEM_TIME AS OF PROCTIME() ON l.x = t.k",
        "it looks rows up when others arrive",
    ),
    "recent": (
        "SELECT k FROM e WHERE ts > now() - INTERVAL '1 day'",
        "it depends on the time of epochs",
    ),
    "final": (
        "SELECT window_start, count(*) AS c FROM TUMBLE(e, ts, INTERVAL '1 minute') GROUP BY 1 EMIT ON WINDOW CLOSE",
        "it depends on the time of epochs, or on watermarks",
    ),
}


def opened(path: Path, seed: int = 0, parallelism: int = 1) -> watersmeet.Connection:
    return watersmeet.connect(path, runtime="inprocess", parallelism=parallelism + seed % 2)


def made(connection: watersmeet.Connection) -> None:
    connection.execute("ALTER SYSTEM SET retention = '1 day'")
    connection.execute(TABLES)
    connection.execute("CREATE TABLE e (k int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) APPEND ONLY")
    for name, (query, _) in (PROVEN | UNPROVABLE).items():
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
        assert found.keys() == PROVEN.keys() | UNPROVABLE.keys()
        for name in PROVEN:
            assert found[name][2:6] == ("proven", 0, 0, None), (commit, found[name])
        for name, (_, reason) in UNPROVABLE.items():
            assert found[name][2:5] == ("not provable", None, None)
            assert reason in found[name][5] or (name in ("recent", "final") and "were late" in found[name][5])
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
@pytest.mark.parametrize("kind", sorted({kind for _, kinds in PROVEN.values() for kind in kinds} - {"constant"}))
def test_a_defect_of_each_operator_is_found(tmp_path: Path, kind: str, fault: Callable[..., Any]) -> None:
    with opened(tmp_path / "db") as connection:
        connection.execute(TABLES)
        names = [name for name, (_, kinds) in PROVEN.items() if kind in kinds and name != "above"][:1]
        for name in names:
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {PROVEN[name][0]}")
        calls = []

        def planted(*arguments: Any) -> Any:
            calls.append(kind)
            return fault(step, *arguments)

        step = STEPS[kind]
        with mock.patch.dict(STEPS, {kind: planted}):
            connection.execute(
                "INSERT INTO t VALUES (1, 2, 1.5, 0.5, 'a'), (2, 2, 1.5, 0.5, 'b'), (3, 3, 2.5, 0.5, 'c'); "
                "INSERT INTO u VALUES (2, 3, ARRAY[1, 2]), (3, 4, ARRAY[3]); INSERT INTO l VALUES (2, 1), (3, 2); FLUSH"
            )
        if kind == "arrange" and fault is repeating:
            return  # an arrangement is not a change
        assert calls
        found = outcomes(connection)
        assert {found[name][2] for name in names} == {"differs"}, found
        assert sum(found[names[0]][3:5]) > 0


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
        assert outcomes(connection)["v"][5] == '1 rows of table "e" were late, and are in no view that existed then'
        assert outcomes(connection, before)["v"][2] == "proven"
        for text, condition in (
            ("VERIFY VIEW e", "CATALOG_TYPE_MISMATCH"),
            ("VERIFY VIEW nothing", "UNDEFINED_RELATION"),
            ("VERIFY VIEW v AT COMMIT 1000", "INVALID_PARAMETER"),
            ("ALTER SYSTEM SET verify_rate = 'often'", "INVALID_PARAMETER"),
        ):
            with pytest.raises(watersmeet.Error) as refused:
                connection.execute(text)
            assert refused.value.condition == condition


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
        (unsigned,) = connection.execute("VERIFY").fetchall()
        assert unsigned[2] == "proven"
        assert unsigned[-2:] == (None, "nobody")
        connection.execute(f"CREATE SECRET proofs WITH (backend = 'file', path = '{private}')")
        connection.execute("ALTER SYSTEM SET verify_key = proofs")
        (made,) = connection.execute("VERIFY VIEW totals").fetchall()
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
        (made,) = connection.execute("VERIFY").fetchall()
        assert made[-1] not in ("nobody", fingerprint)
        connection.execute("ALTER SYSTEM RESET verify_key")
        connection.execute("DROP SECRET proofs")
        assert connection.execute("VERIFY").fetchall()[0][-1] == "nobody"
        shown = connection.execute("SHOW VERIFICATIONS").fetchall()
        assert [row[-1] for row in shown] == ["nobody", made[-1], fingerprint, "nobody"]
        connection.execute("DROP MATERIALIZED VIEW totals")
    assert list((tmp_path / "shop" / "sources").glob("*-verifications.json"))
    with opened(tmp_path / "shop") as connection:
        assert not list((tmp_path / "shop" / "sources").glob("*-verifications.json"))
