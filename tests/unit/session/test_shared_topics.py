"""Topics in the database that several processors write, or processors and INSERT. Lenses SQL, "Processors"."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error

TOPICS = (
    "CREATE TABLE a (_key int, x int null) FORMAT (INT, AVRO); CREATE TABLE b (_key int, x int null) FORMAT (INT, AVRO)"
)


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess") as found:
        found.execute(f"SET defaults.topic.autocreate=true; {TOPICS}")
        yield found


def rows(connection, topic):
    connection.execute("FLUSH")
    return sorted(connection.execute(f"SELECT _key, x FROM {topic}").fetchall())


@pytest.mark.parametrize("separator", [";", None])
def test_processors_write_one_topic(connection, tmp_path, separator):
    """In one script, and one after the other; with a reader; after a restart; until one is stopped."""
    statements = ["INSERT INTO c SELECT STREAM x FROM a", "INSERT INTO c SELECT STREAM x FROM b WHERE x > 1"]
    for text in [separator.join(statements)] if separator else statements:
        connection.execute(text)
    connection.execute("INSERT INTO counted SELECT STREAM COUNT(*) AS n FROM c GROUP BY x")
    connection.execute("INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (3, 1), (4, 2)")
    assert rows(connection, "c") == [(1, 1), (2, 2), (4, 2)]
    connection.close()
    with watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess") as again:
        again.execute("INSERT INTO b VALUES (5, 5); INSERT INTO a VALUES (6, 6)")
        assert rows(again, "c") == [(1, 1), (2, 2), (4, 2), (5, 5), (6, 6)]
        assert sorted(again.execute("SELECT _key, n FROM counted").fetchall()) == [(1, 1), (2, 2), (5, 1), (6, 1)]
        assert [r[0] for r in again.execute("SHOW PROCESSORS").fetchall()] == ["c", "c_2", "counted"]
        again.execute("STOP PROCESSOR c_2; INSERT INTO b VALUES (7, 7); INSERT INTO a VALUES (8, 8)")
        assert rows(again, "c")[-2:] == [(6, 6), (8, 8)]


def test_a_topic_with_records_gets_a_processor(connection):
    """The changes of a table follow the records of INSERT; INSERT goes on."""
    connection.execute("CREATE TABLE c (_key int, x int null) FORMAT (INT, AVRO); INSERT INTO c VALUES (9, 9)")
    connection.execute("INSERT INTO a VALUES (1, 1)")
    connection.execute("INSERT INTO c SELECT TABLE x FROM a")
    assert rows(connection, "c") == [(1, 1), (9, 9)]
    connection.execute("INSERT INTO c VALUES (8, 8); INSERT INTO a VALUES (1, 2); DELETE FROM a WHERE _key = 1")
    connection.execute("FLUSH")
    table = connection.execute("SELECT TABLE _key, x FROM c LIMIT 2").fetchall()
    assert sorted(table) == [(8, 8), (9, 9)]


def test_a_processor_that_does_not_fit_changes_nothing(connection):
    connection.execute("INSERT INTO c SELECT STREAM x FROM a")
    with pytest.raises(Error) as caught:
        connection.execute("INSERT INTO c SELECT STREAM x, x AS y FROM b")
    assert caught.value.condition == "UNDEFINED_COLUMN"
    connection.execute("INSERT INTO a VALUES (1, 1)")
    assert rows(connection, "c") == [(1, 1)]


def test_a_topic_with_records_of_its_processor_gets_another(connection, tmp_path):
    """The processor continues after its records; so does a topic whose processor was stopped."""
    connection.execute("INSERT INTO a VALUES (1, 1); INSERT INTO c SELECT STREAM x FROM a; FLUSH")
    connection.execute("INSERT INTO b VALUES (2, 2); INSERT INTO c SELECT STREAM x FROM b")
    assert sorted(connection.execute("SELECT _key, x FROM c").fetchall()) == [(1, 1), (2, 2)]
    connection.execute("INSERT INTO a VALUES (3, 3)")
    connection.close()
    with watersmeet.connect(tmp_path / "db", "lenses", runtime="inprocess") as again:
        again.execute("SET defaults.topic.autocreate=true; INSERT INTO b VALUES (4, 4)")
        assert rows(again, "c") == [(1, 1), (2, 2), (3, 3), (4, 4)]
        again.execute("INSERT INTO d SELECT TABLE x FROM a; FLUSH; STOP PROCESSOR d; INSERT INTO a VALUES (5, 5)")
        again.execute("INSERT INTO d SELECT STREAM x FROM b")
        assert rows(again, "d") == [(1, 1), (2, 2), (3, 3), (4, 4)]


SCRIPT = """
INSERT INTO c SELECT STREAM x FROM a;
INSERT INTO counted SELECT STREAM COUNT(*) AS n FROM c GROUP BY x;
INSERT INTO copied SELECT TABLE n FROM counted;
INSERT INTO c SELECT STREAM x FROM b;
"""


def test_readers_of_the_same_script_read_all_processors(connection):
    connection.execute("INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (2, 1)")
    connection.execute(SCRIPT)
    assert connection.execute("SELECT _key, n FROM counted").fetchall() == [(1, 2)]
    connection.execute("INSERT INTO b VALUES (3, 1), (4, 4); FLUSH")
    assert sorted(connection.execute("SELECT _key, n FROM counted").fetchall())[-2:] == [(1, 3), (4, 1)]
    assert connection.execute("SELECT * FROM copied WHERE _key = 1").fetchall()[-1] == (3,)


def test_earlier_readers_prevent_another_processor(connection):
    connection.execute(SCRIPT.replace("INSERT INTO c SELECT STREAM x FROM b;", ""))
    with pytest.raises(Error) as caught:
        connection.execute("INSERT INTO c SELECT STREAM x FROM b")
    assert caught.value.condition == "DEPENDENT_OBJECTS"
    assert caught.value.detail == 'Processor "counted" reads it; processor "copied" reads it.'
    connection.execute("INSERT INTO a VALUES (1, 1); FLUSH")
    assert connection.execute("SELECT _key, n FROM counted").fetchall() == [(1, 1)]


def test_a_union_of_streams_has_the_records_of_two_processors(connection):
    """The time and the key of each record, also where its reader joins by time."""
    connection.execute("CREATE VIEW large AS SELECT x FROM b WHERE x > 1")
    connection.execute("""
        WITH u AS (SELECT STREAM x FROM a UNION ALL SELECT STREAM x FROM large);
        INSERT INTO c SELECT STREAM * FROM u;
        INSERT INTO d SELECT STREAM x FROM a;
        INSERT INTO d SELECT STREAM x FROM b WHERE x > 1;
        INSERT INTO e SELECT STREAM u.x, a._key AS k FROM u LEFT JOIN a ON u.x = a.x WITHIN 1s GRACE PERIOD 0s;
    """)
    for second in range(4):
        values = ", ".join(f"({k}, {k}, TIMESTAMP '2021-01-01 00:00:{10 * second + k:02}')" for k in range(3))
        for topic in ("a", "b"):
            connection.execute(f"INSERT INTO {topic} (_key, x, `@time`) VALUES {values}; FLUSH")
    read = "SELECT _key, x, _meta.timestamp FROM {} ORDER BY 1, 2, 3"
    united, shared = (connection.execute(read.format(t)).fetchall() for t in "cd")
    assert len(united) == 16
    assert united == shared
    assert set(connection.execute("SELECT x, k FROM e").fetchall()) == {(0, 0), (1, 1), (2, 2)}
