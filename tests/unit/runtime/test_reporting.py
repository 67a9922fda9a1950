"""What epochs tell those who watch: records of the log with epoch, view and condition, and a span for each stage."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import watersmeet
from watersmeet.cli.output import JsonLines, log_as_json
from watersmeet.errors import error
from watersmeet.runtime import failures

VIEWS = """CREATE TABLE t (k int PRIMARY KEY, g int);
CREATE MATERIALIZED VIEW fine AS SELECT g, count(*) AS n FROM t GROUP BY g;
CREATE MATERIALIZED VIEW v WITH (max_join_amplification_rows = 3) AS SELECT a.k FROM t a JOIN t b ON a.g = b.g;
"""


@pytest.fixture
def spans():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    failures.trace_by(provider)
    yield exporter
    failures.trace_by(None)


def test_a_span_for_each_epoch_and_stage(spans):
    with watersmeet.connect(runtime="inprocess", parallelism=3) as connection:
        list(connection.execute_script(VIEWS))
        spans.clear()
        connection.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
        connection.execute("FLUSH")
        commit = connection.opened.log.last_epoch()
    found = spans.get_finished_spans()
    (epoch,) = [s for s in found if s.name == "epoch"]
    stages = [s for s in found if s is not epoch]
    assert epoch.attributes["watersmeet.epoch"] == commit.epoch
    assert epoch.attributes["watersmeet.commit"] == commit.number
    assert epoch.attributes["watersmeet.rows"] == 2
    assert [s.attributes["watersmeet.stage"] for s in stages] == list(range(len(stages)))
    assert len(stages) > 1
    for stage in stages:
        assert stage.parent.span_id == epoch.context.span_id
        assert epoch.start_time <= stage.start_time <= stage.end_time <= epoch.end_time
        assert stage.attributes["watersmeet.tasks"] >= 1
    assert stages[0].attributes["watersmeet.rows_out"] >= 2


def test_traces_are_sent_to_where_the_environment_says(monkeypatch):
    sent = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            sent.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
        stop = failures.start_tracing()
        try:
            with watersmeet.connect(runtime="inprocess") as connection:
                list(connection.execute_script(VIEWS))
                connection.execute("INSERT INTO t VALUES (1, 1)")
                connection.execute("FLUSH")
        finally:
            stop()
            server.shutdown()
    resources = [r for request in sent for r in request.resource_spans]
    assert {a.value.string_value for r in resources for a in r.resource.attributes if a.key == "service.name"} == {
        "shop"
    }
    names = {s.name for r in resources for scope in r.scope_spans for s in scope.spans}
    assert names == {"epoch", "stage 0"}


def test_a_view_that_is_stopped_is_logged_once(caplog):
    with caplog.at_level(logging.INFO, "watersmeet"), watersmeet.connect(runtime="inprocess") as connection:
        list(connection.execute_script(VIEWS))
        connection.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 9) g(i)")
        connection.execute("FLUSH")
        connection.execute("INSERT INTO t VALUES (100, 2)")
        connection.execute("FLUSH")
    (record,) = [r for r in caplog.records if r.name == failures.__name__]
    assert (record.view, record.condition, record.levelname) == ("v", "AMPLIFICATION_LIMIT", "ERROR")
    said = json.loads(JsonLines().format(record))
    assert said | {"view": "v", "condition": "AMPLIFICATION_LIMIT", "level": "error", "epoch": record.epoch} == said
    assert said["message"].startswith('view "v" was stopped: AMPLIFICATION_LIMIT: ')


def test_the_log_of_epochs_and_failures(caplog):
    with caplog.at_level(logging.DEBUG, "watersmeet"), watersmeet.connect(runtime="inprocess") as connection:
        list(connection.execute_script(VIEWS))
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.execute("FLUSH")
        last = connection.opened.log.last_epoch()
    newest = [r for r in caplog.records if r.name == failures.__name__][-1]
    assert (newest.levelname, newest.epoch, newest.commit, newest.rows) == ("DEBUG", last.epoch, last.number, 1)
    failures.report_failed(error("DISK_FULL", "no space is left", sql="SET password = 'hush'"), 7)
    said = json.loads(JsonLines().format(caplog.records[-1]))
    assert (said["epoch"], said["condition"], said["level"]) == (7, "DISK_FULL", "error")


def test_every_line_is_an_object(capsys):
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("watersmeet").level
    try:
        log_as_json("info")
        logging.getLogger("watersmeet.x").info("two\nlines %s", "é")
        logging.getLogger("watersmeet.x").debug("nothing")
        logging.getLogger("other").info("nothing")
        try:
            raise error("DISK_FULL", "no space")
        except watersmeet.Error:
            logging.getLogger("other").exception("it failed")
    finally:
        root.handlers[:], level, own = before
        root.setLevel(level)
        logging.getLogger("watersmeet").setLevel(own)
        logging.captureWarnings(capture=False)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["level"], first["logger"]) == ("two\nlines é", "info", "watersmeet.x")
    assert first["time"].endswith("+00:00")
    assert second["condition"] == "DISK_FULL"
    assert "raise error" in second["trace"]
    with pytest.raises(watersmeet.Error, match="unknown log level"):
        log_as_json("loud")
