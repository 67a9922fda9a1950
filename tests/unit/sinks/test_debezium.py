"""Debezium's envelopes in Avro through a real broker and a real schema registry, out and in again."""

from __future__ import annotations

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters


def test_a_table_follows_what_a_sink_writes(tmp_path, broker, topic, registry):
    name = topic()
    offset = f"connector = 'kafka', topic = '{name}', properties.bootstrap.server = '{broker.bootstrap}'"
    form = f"FORMAT DEBEZIUM ENCODE AVRO (schema.registry = '{registry.url}')"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar, n numeric(20, 2), at timestamptz)")
        connection.execute("INSERT INTO t VALUES (1, 'a', 1.25, '2024-01-02 03:04:05.678901Z'), (2, NULL, NULL, NULL)")
        connection.execute("INSERT INTO t VALUES (3, 'c', -99999.99, '0001-01-01 00:00:00Z')")
        connection.execute(
            f"CREATE SINK s FROM t WITH ({offset}, progress.topic = 'p_{name}', primary_key = 'k') {form}"
        )
        sink = connection._session.catalog.by_name("s", "public")
        for change in ("UPDATE t SET v = 'b' WHERE k = 1", "DELETE FROM t WHERE k = 2"):
            connection.execute(change)
            connection.execute("FLUSH")
            assert connection._session.database.service(SinkWriters).wait(sink.id, 60)
        connection.execute(
            f"CREATE TABLE r (k int PRIMARY KEY, v varchar, n numeric(20, 2), at timestamptz) WITH ({offset}) {form}"
        )
        connection.execute("FLUSH")
        found, wanted = (connection.execute(f"SELECT * FROM {of} ORDER BY k").fetchall() for of in "rt")
        assert found == wanted
        assert [row[:2] for row in found] == [(1, "b"), (3, "c")]
