"""The figures of commits may be lost: nothing that is shown of the data depends on them."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.runtime import committer
from watersmeet.store.manifests import Metrics

MAKE = """
CREATE TABLE keys (k int PRIMARY KEY, name varchar);
CREATE TABLE seen (k int, at timestamp, WATERMARK FOR at AS at - INTERVAL '1' SECOND) APPEND ONLY;
CREATE MATERIALIZED VIEW joined AS SELECT s.k, s.at, n.name FROM seen s LEFT JOIN keys n ON s.k = n.k;
CREATE MATERIALIZED VIEW closed AS SELECT window_start, k, count(*) AS n FROM TUMBLE(seen, at, INTERVAL '10' SECOND)
    GROUP BY window_start, k EMIT ON WINDOW CLOSE;
"""
LATER = "CREATE MATERIALIZED VIEW per_name AS SELECT name, count(*) AS n FROM joined GROUP BY name"


def rows(connection, name):
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {name}")
    return sorted(cursor.fetchall(), key=repr)


def inserted(connection, *seconds):
    cursor = connection.cursor()
    for s in seconds:
        cursor.execute("INSERT INTO seen VALUES (?, ?)", (s % 3, f"2024-01-01 00:00:{s:02d}"))
        cursor.execute("FLUSH")


def story(path):
    """What is shown after rows that came late, a restart and a view that was made later."""
    with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
        connection.cursor().execute(MAKE)
        connection.cursor().execute("INSERT INTO keys VALUES (0, 'zero'), (1, 'one')")
        inserted(connection, 5, 8, 21, 3)
    with watersmeet.connect(path, runtime="inprocess") as connection:
        inserted(connection, 4, 33, 25)
        connection.cursor().execute(LATER)
        inserted(connection, 34, 2)
        late = {s["name"]: s["late"] for s in connection.status()["sources"]}
        return [rows(connection, name) for name in ("joined", "closed", "per_name")], late


def test_nothing_depends_on_figures(tmp_path, monkeypatch):
    usual = story(tmp_path / "usual")
    monkeypatch.setattr(committer, "_metrics", lambda *arguments: Metrics())
    assert story(tmp_path / "lost") == usual
    assert usual[1] == {"seen": 4}
    assert len(usual[0][0]) == 5


def test_a_view_over_its_limit_stays_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(committer, "_metrics", lambda *arguments: Metrics())
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE l (k int, a int); CREATE TABLE r (k int, b int)")
        cursor.execute("SET max_join_amplification_rows = 3")
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT l.k, a, b FROM l JOIN r ON l.k = r.k")
        cursor.execute("INSERT INTO l VALUES (1, 1), (1, 2); INSERT INTO r VALUES (1, 1), (1, 2)")
        cursor.execute("FLUSH")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.cursor().execute("INSERT INTO l VALUES (2, 2)")
        connection.cursor().execute("FLUSH")
        with pytest.raises(watersmeet.Error, match="AMPLIFICATION_LIMIT"):
            connection.cursor().execute("SELECT * FROM v")
