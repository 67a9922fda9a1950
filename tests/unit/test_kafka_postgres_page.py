"""The examples of docs/KAFKA-POSTGRES.md, with a real broker and a real PostgreSQL."""

from __future__ import annotations

from scripts.servers.postgres import PASSWORD, USER
from tests.pages import ROOT, Page


def test_examples(broker, own_postgres, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "KAFKA-POSTGRES.md").read_text(encoding="utf-8")
    for topic in ("shop-orders", "shop-bought"):
        text = text.replace(topic, named(topic))
    text = text.replace("127.0.0.1:9092", broker.bootstrap)
    assert f"{USER}:{PASSWORD}" == "postgres:postgres-secret"
    port = str(own_postgres.server.port)
    text = text.replace("127.0.0.1:5432", f"127.0.0.1:{port}").replace("port = '5432'", f"port = '{port}'")
    Page("inprocess").run(text)
