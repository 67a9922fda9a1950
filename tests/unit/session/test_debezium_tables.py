"""Tables of Debezium's messages that depend on the rows that are there: values that were not sent, and TRUNCATE."""

from __future__ import annotations

import contextlib
import random
from unittest import mock

import pytest
from tests.messages_reference import PLACEHOLDERS
from tests.rowchanges import COLUMNS, RowChanges, change
from tests.thorough import mostly_slow
from tests.unit.store.faults import FaultyOs, Killed

import watersmeet
from watersmeet.errors import Error
from watersmeet.runtime.workers import Budget
from watersmeet.system import files

UNSENT = PLACEHOLDERS[0]


def of_topic(broker, topic, **more):
    options = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": broker.bootstrap, **more}
    listed = ", ".join(f"{k} = '{v}'" for k, v in options.items())
    return f"WITH ({listed}) FORMAT DEBEZIUM ENCODE JSON"


def send(broker, topic, *messages):
    producer = broker.producer()
    for key, value in messages:
        producer.produce(topic, value, key=key)
    producer.flush()


def rows(connection, query):
    connection.flush()
    return connection.execute(query).fetchall()


DEAD = 'SELECT topic, partition, "offset", reason FROM watersmeet.dead_letters ORDER BY "offset"'


@pytest.mark.parametrize("parallelism", [1, 3])
def test_values_that_were_not_sent_and_truncate(tmp_path, broker, topic, parallelism):
    name = topic(retention_ms=-1)

    def opened():
        return watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=parallelism)

    with opened() as connection:
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int, bio varchar) {of_topic(broker, name)}")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n, sum(v) AS v, max(bio) AS bio FROM t")
        whole = [change("c", None, {"id": i, "v": i, "bio": f"bio {i}"}) for i in range(10)]
        send(broker, name, *((b"", w) for w in whole))
        assert rows(connection, "SELECT * FROM m") == [(10, 45, "bio 9")]
        # In one epoch: an update, another one that keeps what the first one set, and one of a row that is not there.
        send(
            broker,
            name,
            (b"", change("u", None, {"id": 9, "v": 100, "bio": UNSENT})),
            (b"", change("u", None, {"id": 8, "v": UNSENT, "bio": "z"})),
            (b"", change("u", None, {"id": 8, "v": 200, "bio": UNSENT})),
            (b"", change("u", None, {"id": 77, "v": 1, "bio": UNSENT})),
        )
        assert rows(connection, "SELECT * FROM m") == [(10, 45 - 17 + 300, "z")]
        assert rows(connection, "SELECT * FROM t WHERE id > 7 ORDER BY id") == [(8, 200, "z"), (9, 100, "bio 9")]
        reason = 'kept: the value of "bio" did not change, but there is no row with id = 77'
        assert connection.execute(DEAD).fetchall() == [(name, 0, 13, reason)]
    send(
        broker,
        name,
        (b"", change("c", None, {"id": 20, "v": 1, "bio": "before"})),
        (b"", change("t")),
        (b"", change("c", None, {"id": 21, "v": 2, "bio": "after"})),
        (b"", change("u", None, {"id": 21, "v": 3, "bio": UNSENT})),
        (b"", change("u", None, {"id": 9, "v": 3, "bio": UNSENT})),
    )
    with opened() as connection:
        assert rows(connection, "SELECT * FROM m") == [(1, 3, "after")]
        assert rows(connection, "SELECT * FROM t") == [(21, 3, "after")]
        assert [row[2] for row in connection.execute(DEAD).fetchall()] == [13, 18]
        send(broker, name, (b"", change("t")))
        assert rows(connection, "SELECT * FROM m") == [(0, None, None)]
        connection.execute(f"CREATE TABLE again (id int PRIMARY KEY, v int, bio varchar) {of_topic(broker, name)}")
        assert rows(connection, "SELECT * FROM again") == []
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2, rebuild=True) as connection:
        send(broker, name, (b"", change("c", None, {"id": 1, "v": 2, "bio": "x"})))
        assert rows(connection, "SELECT * FROM m") == [(1, 2, "x")]
        dead = "SELECT count(*) FROM watersmeet.dead_letters WHERE source = 't'"
        assert connection.execute(dead).fetchall() == [(2,)]


def test_a_source_that_stops_at_bad_records_stops_at_updates_without_a_row(tmp_path, broker, topic):
    name = topic(retention_ms=-1)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(
            f"CREATE TABLE t (id int PRIMARY KEY, bio varchar) {of_topic(broker, name, on_error='stop')}"
        )
        send(broker, name, (b"", change("u", None, {"id": 1, "bio": UNSENT})))
        [notice] = connection.flush()
        assert "a record can't be read: kept: the value of" in notice
        assert "stalled" in notice
        assert rows(connection, "SELECT * FROM watersmeet.dead_letters") == []
        connection.execute(notice.partition("continue: ")[2])
        dead = rows(connection, 'SELECT "offset" FROM watersmeet.dead_letters')
        assert dead == [(0,)]


def test_generated_columns_of_values_that_were_not_sent(tmp_path, broker, topic):
    name = topic(retention_ms=-1)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(
            f"""CREATE TABLE t (id int PRIMARY KEY, a varchar, b varchar, size int AS length(a), ab varchar AS a || b)
                {of_topic(broker, name)}"""
        )
        send(
            broker,
            name,
            (b"", change("c", None, {"id": 1, "a": "long", "b": "x"})),
            (b"", change("u", None, {"id": 1, "a": UNSENT, "b": UNSENT})),
            (b"", change("u", None, {"id": 1, "a": UNSENT, "b": "y"})),
        )
        assert rows(connection, "SELECT * FROM t") == [(1, "long", "x", 4, "longx")]
        ((_, _, offset, reason),) = connection.execute(DEAD).fetchall()
        assert (offset, reason) == (
            2,
            'generated: column "ab" is computed from a value that was not sent, and from one that was',
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_slow(range(12), 1))
def test_stops_anywhere_lose_no_change_and_set_none_aside_twice(seed, tmp_path, broker, topic, monkeypatch):
    name, rng, model = topic(retention_ms=-1), random.Random(seed), RowChanges(seed)
    cuts = random.Random(seed)
    monkeypatch.setattr(Budget, "rows", property(lambda _: cuts.choice([1, 3, 40, 1_000_000])))
    options = {"runtime": "inprocess", "parallelism": rng.choice([1, 2, 3])}
    connection = watersmeet.connect(tmp_path / "db", **options)
    connection.execute(f"CREATE TABLE t ({COLUMNS}) {of_topic(broker, name)}")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM t")
    stops = 0
    for _ in range(8):
        send(broker, name, *model.messages(rng.choice([1, 5, 40])))
        faulty = FaultyOs(rng.randrange(1, 40), torn=rng.random() < 0.3)
        with mock.patch.object(files, "os", faulty):
            try:
                connection.flush()
            except Killed:
                stops += 1
                with contextlib.suppress(Killed):
                    connection.close()
        if faulty._dead:
            connection = watersmeet.connect(tmp_path / "db", **options)
        for relation in ("t", "v"):
            assert rows(connection, f"SELECT * FROM {relation} ORDER BY id") == model.listed()
        assert [row[2] for row in connection.execute(DEAD).fetchall()] == model.dead
    connection.close()
    assert stops


def test_versions_are_refused(tmp_path, broker, topic):
    name = topic()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(
            f"CREATE TABLE t (id int PRIMARY KEY, at timestamp, WATERMARK FOR at AS at) {of_topic(broker, name)}"
        )
        connection.execute("CREATE TABLE l (id int, at timestamp, WATERMARK FOR at AS at) APPEND ONLY")
        with pytest.raises(Error, match="no versions to join as of a time of the left side yet") as caught:
            connection.execute(
                "CREATE MATERIALIZED VIEW v AS SELECT l.id FROM l JOIN t FOR SYSTEM_TIME AS OF l.at ON l.id = t.id"
            )
        assert caught.value.condition == "FEATURE_NOT_SUPPORTED"
