"""Named collections of Timeplus, and streams and tables that name them."""

from __future__ import annotations

import pytest
from tests.kafkatopics import messages

import watersmeet


@pytest.fixture
def session(tmp_path):
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        yield connection


def rows(connection, query):
    return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_stream_takes_the_settings_of_a_collection_over_unless_it_gives_them_itself(broker, topic, session):
    first, second = topic(), topic()
    session.execute(
        f"CREATE NAMED COLLECTION kafka AS brokers = '{broker.bootstrap}', topic = '{first}', Data_Format=CSV"
    )
    session.execute("CREATE EXTERNAL STREAM a (n int, t string) SETTINGS type='kafka', named_collection='kafka'")
    session.execute(
        "CREATE EXTERNAL STREAM b (n int, t string) "
        f"SETTINGS type='kafka', topic='{second}', named_collection='kafka', data_format='JSONEachRow'"
    )
    for stream in "ab":
        session.execute(f"INSERT INTO {stream} (n, t) VALUES (1, 'x')")
        assert rows(session, f"SELECT n, t FROM table({stream})") == [(1, "x")]
    assert [m.value() for m in messages(broker, first)] == [b"1,x"]
    assert [m.value() for m in messages(broker, second)] == [b'{"n":1,"t":"x"}']


def test_a_table_takes_the_settings_of_a_collection_over(postgres, session):
    postgres.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)")
    settings = ", ".join(part for part in postgres.settings.split(", ") if not part.startswith("type"))
    session.execute(f"CREATE NAMED COLLECTION pg AS {settings}")
    session.execute("CREATE EXTERNAL TABLE e SETTINGS type='postgresql', table='t', named_collection='pg'")
    assert rows(session, "SELECT n FROM e") == [(7,)]
    with pytest.raises(watersmeet.Error, match="DEPENDENT_OBJECTS"):
        session.execute("DROP NAMED COLLECTION pg")


def test_collections_are_listed_without_their_secrets_and_dropped(tmp_path):
    for _ in range(2):
        with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as session:
            session.execute("CREATE NAMED COLLECTION IF NOT EXISTS c AS path = 'd', password = 'geheim', format='CSV'")
            assert rows(session, "SHOW NAMED COLLECTIONS") == [("c",)]
            assert "password = '[HIDDEN]'" in str(rows(session, "SHOW CREATE NAMED COLLECTION c"))
            assert "geheim" not in str(rows(session, "SHOW CREATE NAMED COLLECTION c"))
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as session:
        session.execute("DROP NAMED COLLECTION c")
        session.execute("DROP NAMED COLLECTION IF EXISTS c")
        assert rows(session, "SHOW NAMED COLLECTIONS") == []


def test_a_collection_stays_as_long_as_a_stream_names_it(session, tmp_path):
    session.execute("CREATE NAMED COLLECTION c AS format = 'CSV' NOT OVERRIDABLE")
    session.execute(f"CREATE EXTERNAL STREAM s (n int) SETTINGS type='file', path='{tmp_path}', named_collection='c'")
    with pytest.raises(watersmeet.Error, match="DEPENDENT_OBJECTS"):
        session.execute("DROP NAMED COLLECTION c")
    session.execute("DROP STREAM s")
    session.execute("DROP NAMED COLLECTION c")


@pytest.mark.parametrize(
    ("statement", "condition", "words"),
    [
        ("CREATE NAMED COLLECTION d AS a = 1, A = 2", "CONNECTOR_OPTION", 'option "A" is given twice'),
        ("CREATE NAMED COLLECTION d", "SYNTAX_ERROR", ""),
        ("ALTER NAMED COLLECTION c SET topic = 'u'", "FEATURE_NOT_SUPPORTED", "ALTER NAMED COLLECTION"),
        ("SELECT * FROM c", "CATALOG_TYPE_MISMATCH", 'named collection "c" can\'t be read by a query'),
        (
            "CREATE EXTERNAL STREAM s (n int) SETTINGS type='kafka', topic='u', named_collection='c'",
            "CONNECTOR_OPTION",
            'setting "topic" of named collection "c" can\'t be overridden',
        ),
        (
            "CREATE EXTERNAL STREAM s (n int) SETTINGS type='kafka', named_collection='C2'",
            "UNDEFINED_OBJECT",
            'named collection "C2" does not exist',
        ),
        (
            "CREATE EXTERNAL TABLE s (n int) SETTINGS type='file', named_collection='t'",
            "UNDEFINED_OBJECT",
            'named collection "t" does not exist',
        ),
    ],
)
def test_what_is_refused(session, statement, condition, words):
    session.execute("CREATE STREAM t (n int)")
    session.execute("CREATE NAMED COLLECTION c AS brokers = 'h:1', topic = 't' NOT OVERRIDABLE")
    with pytest.raises(watersmeet.Error) as caught:
        session.execute(statement)
    assert caught.value.condition == condition
    assert words in caught.value.message
    assert caught.value.span is not None
