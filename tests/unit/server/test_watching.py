"""What the console shows of relations: freshness, the last hour, what fills a view."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

import watersmeet
from watersmeet.catalog import MaterializedView
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.runtime.backfill import progress_of
from watersmeet.server.web.watch import (
    STEP_S,
    STEPS,
    History,
    Sample,
    Watch,
    health_of_lag,
    inputs_of_views,
    relation_metrics,
)
from watersmeet.store.manifests import Backfill, Filling

STEP_US = STEP_S * 1_000_000


def test_history_is_rates_of_sums():
    history = History()
    for step, total, lag in ((1000, 100, 0.0), (1001, 250, 5.0), (1004, 280, 1.0), (1005, 10, 0.0)):
        history.add(step * STEP_US, {"v": Sample(rows_in=total, lag_s=lag)})
    history.add(1005 * STEP_US + 5_000_000, {"v": Sample(rows_in=60, lag_s=0.5)})
    found = history.read("v")
    assert (found["end_s"], found["step_s"]) == (1005 * STEP_S, STEP_S)
    # 150 rows in ten seconds; 30 in thirty, of which two steps were not seen; then it was made anew.
    assert found["rows_in"][-6:] == [None, 15.0, 1.0, 1.0, 1.0, None]
    assert found["lag_s"][-6:] == [0.0, 5.0, None, None, 1.0, 0.5]
    assert history.read("w")["rows_in"] == [None] * STEPS


def test_a_step_that_has_just_begun_has_the_rate_of_its_own_time():
    history = History()
    history.add(1000 * STEP_US, {"v": Sample(rows_in=0)})
    history.add(1001 * STEP_US + 1_000_000, {"v": Sample(rows_in=110)})
    assert history.read("v")["rows_in"][-1] == 10.0


def test_expensive_snapshots_are_rare(tmp_path, monkeypatch):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        watch = Watch(Session(connection.opened, Variables("risingwave")))
        assert watch.pause_s == 1.0
        times = iter([5.0, 5.001, 6.0, 6.01, 7.0, 9.0])
        monkeypatch.setattr("time.thread_time", lambda: next(times))
        for pause_s in (1.0, 2.0, 10.0):
            watch.snapshot(-1.0)
            assert watch.pause_s == pytest.approx(pause_s)


def test_history_is_an_hour_and_forgets_what_is_gone():
    history = History()
    history.add(1000 * STEP_US, {"v": Sample(rows=1), "w": Sample(rows=2)})
    history.add((1000 + STEPS - 1) * STEP_US, {"v": Sample(rows=3)})
    assert [history.read("v")["rows"][i] for i in (0, -1)] == [1.0, 3.0]
    history.add((1000 + STEPS) * STEP_US, {"v": Sample(rows=4)})
    assert history.read("v")["rows"][0] is None
    history.add((1000 + 3 * STEPS) * STEP_US, {"v": Sample(rows=5)})
    assert [r for r in history.read("v")["rows"] if r is not None] == [5.0]
    history.forget(["v"])
    assert history.read("w")["rows"] == [None] * STEPS
    history.add(1000 * STEP_US, {"v": Sample(rows=9)})
    assert [r for r in history.read("v")["rows"] if r is not None] == [5.0], "older than an hour"


def test_history_begins_with_the_commits_that_are_there(tmp_path):
    path = tmp_path / "db"
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        for i in range(5):
            connection.execute(f"INSERT INTO t VALUES ({i})")
            connection.execute("FLUSH")
        (view,) = [r.id for r in connection.opened.catalog.relations.values() if isinstance(r, MaterializedView)]
    with watersmeet.connect(path, read_only=True) as reader:
        watch = Watch(Session(reader.opened, Variables("risingwave")))
        watch.begin()
        series = watch.history.read(view)
        assert [r for r in series["rows"] if r is not None][-1] == 1
        assert [d for d in watch.history.read("")["epoch_s"] if d is not None]
        assert watch.snapshot().status.state == "stopped"
        assert watch.snapshot().metrics[view].health is None


@pytest.mark.parametrize(("lag_s", "health"), [(0, 0), (0.99, 0), (1, 1), (59, 1), (60, 2), (1e9, 2), (math.inf, 2)])
def test_health_of_a_lag(lag_s, health):
    assert health_of_lag(lag_s) == health


def test_freshness_follows_what_a_view_reads(tmp_path):
    (tmp_path / "in").mkdir()
    script = f"""
    CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path / "in"}') FORMAT PLAIN ENCODE JSON;
    CREATE TABLE t (a int PRIMARY KEY);
    CREATE MATERIALIZED VIEW of_source AS SELECT a FROM s;
    CREATE MATERIALIZED VIEW of_table AS SELECT a FROM t;
    CREATE MATERIALIZED VIEW of_both AS SELECT x.a FROM of_source x JOIN of_table y ON x.a = y.a;
    FLUSH;
    """
    with watersmeet.connect(runtime="inprocess") as connection:
        for _ in connection.execute_script(script):
            pass
        watch = Watch(Session(connection.opened, Variables("risingwave")))
        snapshot = watch.snapshot()
        ids = {r.name: r.id for r in snapshot.catalog.relations.values()}
        inputs = inputs_of_views(snapshot.catalog)
        assert {*inputs[ids["of_both"]]} == {ids["s"], ids["t"]}

        def shown(name, **status):
            (source,) = snapshot.status.sources
            reporting = replace(source, reported={**source.reported, **status.pop("source", {})})
            return relation_metrics(
                replace(snapshot.status, sources=(reporting,), **status), snapshot.catalog, inputs, {}
            )[ids[name]]

        late = {"lag_seconds": 75.0}
        assert [shown(n, **late).health for n in ("of_table", "of_both", "of_source")] == [2, 2, 0]
        assert [shown(n, **late).lag_s for n in ("of_table", "of_source")] == [75.0, 0.0]
        away = {"source": {"state": "waiting", "reason": "the brokers can't be reached"}}
        assert [shown(n, **away).health for n in ("s", "of_source", "of_both", "of_table")] == [2, 2, 2, 0]
        assert shown("of_both", **away).note == '"s" is waiting'
        assert shown("s", **away).note == "the brokers can't be reached"
        behind = {"source": {"backlog_messages": 1200}}
        assert (shown("of_source", **behind).health, shown("of_source", **behind).note) == (
            1,
            '"s" has 1,200 messages to read',
        )
        failed = shown("of_table", state="failed", error={"condition": "DISK_FULL", "message": "no space"})
        assert (failed.state, failed.health, failed.note) == ("stopped", 2, "DISK_FULL: no space")


def test_a_view_that_differs_from_its_query_is_a_problem():
    script = "CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t; CREATE MATERIALIZED VIEW w AS "
    with watersmeet.connect(runtime="inprocess") as connection:
        for _ in connection.execute_script(
            script + "SELECT count(*) AS n FROM t; INSERT INTO t VALUES (1), (2); FLUSH"
        ):
            pass
        connection.execute("VERIFY")
        snapshot = Watch(Session(connection.opened, Variables("risingwave"))).snapshot()
        ids = {r.name: r.id for r in snapshot.catalog.relations.values()}
        proven = snapshot.metrics[ids["v"]]
        commit = snapshot.verified[ids["v"]].commit
        assert (proven.health, proven.errors, proven.verified) == (0, 0, f"proven at commit {commit}")
        wrong = {ids["v"]: replace(snapshot.verified[ids["v"]], outcome="differs", missing=1200, extra=1)}
        found = relation_metrics(snapshot.status, snapshot.catalog, {}, {}, verified=wrong)
        differs = found[ids["v"]]
        assert (differs.health, differs.errors) == (2, 1)
        assert differs.note == f"VERIFY: differs at commit {commit}, 1,201 rows"
        assert found[ids["w"]].verified is None


def test_sources_that_stand_are_logged_once(tmp_path, caplog):
    (tmp_path / "in").mkdir()
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute(
            f"CREATE SOURCE s (a int) WITH (connector = 'file', path = '{tmp_path / 'in'}') FORMAT PLAIN ENCODE JSON"
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM s")
        connection.execute("FLUSH")
        watch = Watch(Session(connection.opened, Variables("risingwave")))
        snapshot = watch.snapshot()
        (source,) = [s.id for s in snapshot.status.sources]
        with caplog.at_level(logging.INFO, "watersmeet"):
            for state, note in (
                ("running", None),
                ("waiting", "no broker"),
                ("waiting", "no broker"),
                ("running", None),
            ):
                shown = {**snapshot.metrics, source: snapshot.metrics[source]._replace(state=state, note=note)}
                watch._say(replace(snapshot, metrics=shown))
    assert [(r.levelname, r.getMessage(), r.relation, r.state) for r in caplog.records] == [
        ("WARNING", 'source "s" is waiting: no broker', "s", "waiting"),
        ("INFO", 'source "s" is running', "s", "running"),
    ]


@pytest.mark.parametrize(
    "part, read, round, progress", [(0, 0, 0, 0.0), (1, 0, 0, 0.25), (2, 0, 0, 0.5), (2, 100, 0, 0.625), (2, 9, 1, 1.0)]
)
def test_progress_of_a_view_that_is_filled(part, read, round, progress):  # noqa: A002
    """The replay of arrangements is half of it. Later rounds only read what was committed meanwhile."""
    backfill = Backfill(Filling(("v",), ("t1", "t2"), 2, part), 0, 5, 5, ("t1",), rows=400, read=read, round=round)
    assert progress_of(backfill) == progress
