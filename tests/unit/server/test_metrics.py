"""Metrics: all that are declared, and that rules and the dashboard name, are exported; without a value, none is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import watersmeet
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.objectstores import base
from watersmeet.runtime.memory import Meter
from watersmeet.server.clients import Traffic, kind_of
from watersmeet.server.web.metrics import FAMILIES, PREFIX, Clients, Exporter, seconds_of
from watersmeet.server.web.watch import Epochs, Watch
from watersmeet.store.manifests import Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"
NOBODY = Clients({"postgresql": 2, "http": 0}, {("select", "00000"): 3, ("other", "42601"): 1}, 4)
#: What Prometheus adds: the labels of each target, and those of histograms.
OWN_LABELS = {"instance", "job", "le"}


def exported(watch, clients=NOBODY):
    """By name, the series: labels and value."""
    text, kind = Exporter(lambda: watch.snapshot(-1), lambda: clients, Meter().read).text()
    assert kind.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def watch_of(connection):
    return Watch(Session(connection.opened, Variables("risingwave")))


@pytest.fixture
def everything(tmp_path):
    """A database with something for every metric."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(
        '{"id": 1, "ts": "2026-01-01 00:00:10"}\n{"id": 2, "ts": "2026-01-01 00:00:01"}\nx\n'
    )
    script = f"""
    CREATE SOURCE s (id int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
        WITH (connector = 'file', path = '{tmp_path / "in"}') FORMAT PLAIN ENCODE JSON;
    CREATE TABLE t (id int PRIMARY KEY);
    CREATE MATERIALIZED VIEW v AS SELECT s.id, s.ts FROM s JOIN t ON s.id = t.id;
    CREATE SINK k FROM v WITH (connector = 'file', path = '{tmp_path / "out"}', type = 'append-only',
        force_append_only = 'true');
    CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t;
    INSERT INTO t VALUES (1), (2);
    FLUSH;
    """
    with watersmeet.connect(runtime="inprocess") as connection:
        watch = watch_of(connection)
        watch.begin()
        for _ in connection.execute_script(script):
            pass
        connection.execute("VERIFY")
        yield watch


def test_all_that_is_declared_is_exported(everything):
    found = exported(everything)
    snapshot = everything.snapshot(100)
    source = snapshot.status.sources[0]
    reporting = replace(source, reported={**source.reported, "backlog_messages": 7})  # as Kafka does
    snapshot = replace(snapshot, status=replace(snapshot.status, sources=(reporting, *snapshot.status.sources[1:])))
    found |= {n: v for n, v in exported_snapshot(snapshot).items() if n not in found}
    names = {n.removeprefix(PREFIX) for n in found if n.startswith(PREFIX)}
    wanted = set()
    for name, family in FAMILIES.items():
        wanted |= {
            "gauge": {name},
            "counter": {f"{name}_total"},
            "histogram": {f"{name}_bucket", f"{name}_count", f"{name}_sum"},
        }[family.kind]
        sample = f"{PREFIX}{name}" + {"counter": "_total", "histogram": "_count"}.get(family.kind, "")
        assert all(set(labels) == set(family.labels) for labels, _ in found[sample]), name
    assert names == wanted


def exported_snapshot(snapshot):
    class Fixed:
        def snapshot(self, _):
            return snapshot

    return exported(Fixed())


def test_values(everything):
    found = exported(everything)

    def value(name, **labels):
        (series,) = [v for ls, v in found[PREFIX + name] if ls == labels]
        return series

    assert value("view_failed", view="v") == value("view_filling", view="v") == value("engine_failed") == 0
    assert value("source_rows_total", source="s") == 2
    assert value("source_dead_total", source="s") == 1
    assert value("watermark_timestamp_seconds", relation="s") == seconds_of("2026-01-01 00:00:09")
    assert value("lag_seconds", view="v") == 0
    assert value("memory_bytes", part="main", kind="own") > value("memory_bytes", part="workers", kind="own") == 0
    assert value("memory_bytes", part="main", kind="mapped") > 0
    assert value("merge_debt_bytes", view="v") == 0
    assert value("sink_running", sink="k") == 1
    assert value("view_mismatches", view="n") == 0
    assert value("view_verified_commit", view="n") == everything.session.database.log.head()
    assert value("view_verified_timestamp_seconds", view="n") > 1.7e9
    assert not [labels for labels, _ in found[PREFIX + "view_mismatches"] if labels != {"view": "n"}]
    assert value("view_rows_out_total", view="v") == value("view_rows", view="v") == 2
    assert value("queries_total", kind="select", sqlstate="00000") == 3
    assert value("connections", protocol="postgresql") == 2
    assert value("epoch_rows_total") >= 4
    assert value("epoch_duration_seconds_count") >= 1
    assert value("epoch_duration_seconds_bucket", le="+Inf") == value("epoch_duration_seconds_count")


def test_epochs_add_up(everything):
    epochs = Epochs()
    for local in (2, 7):
        epochs = epochs.with_epoch(
            Metrics(rows=3, duration_us=9, local=local, moved=1, cache_hits=5, cache_misses=4, fetched_bytes=6)
        )
    found = exported_snapshot(replace(everything.snapshot(100), epochs=epochs))
    values = {
        name: found[f"{PREFIX}{name}_total"][0][1]
        for name in (
            "epoch_rows",
            "buckets_local",
            "buckets_moved",
            "cache_hits",
            "cache_misses",
            "store_fetched_bytes",
        )
    }
    assert list(values.values()) == [6, 9, 2, 10, 8, 12], values


def test_what_has_no_value_is_left_out(tmp_path):
    path = str(tmp_path / "db")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        found = exported(watch_of(connection))
        for name in (
            "last_commit_timestamp_seconds",
            "lag_seconds",
            "view_failed",
            "source_rows_total",
            "sink_running",
        ):
            assert PREFIX + name not in found
        connection.execute("CREATE TABLE t (a int, ts timestamp, WATERMARK FOR ts AS ts) APPEND ONLY")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM t")
        connection.execute("FLUSH")
        found = exported(watch_of(connection))
        assert PREFIX + "lag_seconds" in found
        assert PREFIX + "watermark_timestamp_seconds" not in found, "no row came yet"
    with watersmeet.connect(path, read_only=True) as connection:
        found = exported(watch_of(connection))
        assert PREFIX + "epoch_rows_total" not in found, "a reader does not see every epoch"
        assert PREFIX + "lag_seconds" not in found, "nobody writes"
        assert PREFIX + "view_rows" in found


def test_kinds_of_statements_are_few():
    assert {kind_of(t) for t in ("SELECT 5", "select\n1", "CREATE TABLE", "BEGIN", "", "PURGE x")} == {
        "select",
        "other",
        "create",
        "transaction",
    } | {kind_of("select\n1")}
    traffic = Traffic()
    traffic.ended("select")
    traffic.ended("select")
    traffic.ended("select", "42601")
    with traffic.subscribed():
        assert traffic.subscriptions == 1
    assert (traffic.statements, traffic.subscriptions) == ({("select", "00000"): 2, ("select", "42601"): 1}, 0)


def test_requests_are_timed_and_answers_are_no_failures():
    @base.timed("test")
    def asked(cause=None):
        if cause is not None:
            raise cause
        return 1

    assert asked() == 1
    for cause in (FileNotFoundError(), FileExistsError(), OSError()):
        with pytest.raises(OSError):
            asked(cause)
    times = base.request_times()["test"]
    assert (sum(times.counts), times.failures) == (4, 1)
    assert times.seconds >= 0


def selectors(expr):
    """The names of metrics in an expression, each with the labels that it is matched and grouped by."""
    if isinstance(expr, promql.VectorSelector):
        yield expr.name, {m.name for m in expr.matchers.matchers} if expr.matchers else set()
    elif isinstance(expr, promql.MatrixSelector):
        yield from selectors(expr.vector_selector)
    elif isinstance(expr, promql.BinaryExpr):
        yield from selectors(expr.lhs)
        yield from selectors(expr.rhs)
    elif isinstance(expr, promql.Call):
        for argument in expr.args:
            yield from selectors(argument)
    elif isinstance(expr, (promql.AggregateExpr, promql.ParenExpr, promql.UnaryExpr)):
        labels = set(expr.modifier.labels) if isinstance(expr, promql.AggregateExpr) and expr.modifier else set()
        for name, more in selectors(expr.expr):
            yield name, more | labels
    else:
        assert isinstance(expr, (promql.NumberLiteral, promql.StringLiteral)), expr


def check(expression, shown=()):
    """That an expression can be read, and names metrics and labels that there are. shown: labels in texts about it."""
    expression = expression.replace("$__rate_interval", "1m")
    names = list(selectors(promql.parse(expression)))
    assert names, expression
    labels = set()
    for name, used in names:
        if not name.startswith(PREFIX):
            assert name in ("up", "process_cpu_seconds_total", "process_resident_memory_bytes"), name
            labels |= OWN_LABELS
            continue
        bare = re.sub("_(total|bucket|count|sum)$", "", name.removeprefix(PREFIX))
        family = FAMILIES[name.removeprefix(PREFIX) if bare not in FAMILIES else bare]
        kinds = {"_total": "counter", "_bucket": "histogram", "_count": "histogram", "_sum": "histogram"}
        ending = name.removeprefix(PREFIX).removeprefix(bare)
        assert family.kind == kinds.get(ending, "gauge"), name
        assert used <= {*family.labels, *OWN_LABELS}, (name, used)
        labels |= {*family.labels, *OWN_LABELS}
        # Sums since the beginning mean nothing by themselves.
        assert family.kind == "gauge" or re.search(r"(rate|increase)\(" + name, expression), expression
    assert set(shown) <= labels, expression


def test_rules_name_what_is_exported():
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())
    found = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({r["alert"] for r in found}) == len(found) > 10
    for rule in found:
        texts = " ".join(rule["annotations"].values())
        check(rule["expr"], re.findall(r"\$labels\.(\w+)", texts))
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_panels_name_what_is_exported():
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    panels = [p for p in dashboard["panels"] if p["type"] != "row"]
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
    shown = set()
    for panel in panels:
        assert panel["targets"]
        for target in panel["targets"]:
            check(target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            shown |= set(re.findall(PREFIX + r"\w+", target["expr"]))
    bare = {re.sub("_(total|bucket|count|sum)$", "", n.removeprefix(PREFIX)) for n in shown}
    assert bare >= FAMILIES.keys(), "each metric has a panel"
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"])
