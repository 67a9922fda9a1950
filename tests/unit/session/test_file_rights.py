"""allow_files = False: no statement of the connection reads files of the machine."""

from __future__ import annotations

import pytest

import watersmeet

ICEBERG = (
    "connector = 'iceberg', catalog.type = 'rest', catalog.uri = 'http://127.0.0.1:1', database.name = 'd', "
    "table.name = 't'"
)
SQLITE = ICEBERG.replace("'rest'", "'jdbc'").replace("http://127.0.0.1:1", "jdbc:sqlite:/x")


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    path = tmp_path_factory.mktemp("rights") / "db"
    with watersmeet.connect(path, runtime="inprocess", allow_files=False) as opened:
        yield opened


@pytest.mark.parametrize(
    ("dialect", "statement", "place"),
    [
        ("risingwave", "SELECT * FROM read_csv('/etc/passwd')", "read_csv('/etc/passwd')"),
        ("risingwave", "SELECT 1 WHERE EXISTS (SELECT * FROM read_parquet('/x'))", "read_parquet('/x')"),
        ("risingwave", "CREATE TABLE u (a int); INSERT INTO u SELECT a FROM read_json('/x')", "read_json('/x')"),
        ("risingwave", "CREATE SOURCE s (a int) WITH (connector = 'file', path = '/etc', format = 'csv')", "s"),
        ("risingwave", "CREATE TABLE s (a int) WITH (connector = 'file', path = '/etc', format = 'csv')", "s"),
        ("timeplus", "CREATE EXTERNAL STREAM s (a int) SETTINGS type = 'file', path = '/etc', format = 'csv'", "s"),
        (
            "risingwave",
            (
                "CREATE SINK s AS SELECT 1 AS a WITH (connector = 'file', path = '/x', type = 'append-only') "
                "FORMAT PLAIN ENCODE JSON"
            ),
            "connector",
        ),
        (
            "risingwave",
            "CREATE SINK s AS SELECT 1 AS a WITH (connector = 'deltalake', location = '/x', type = 'append-only')",
            "connector",
        ),
        ("risingwave", "CREATE SOURCE s WITH (connector = 'deltalake', location = '/x')", "s"),
        ("risingwave", "CREATE SOURCE s (a int) WITH (connector = 'deltalake', location = '/x')", "s"),
        ("risingwave", f"CREATE SOURCE s (a int) WITH ({ICEBERG}, warehouse.path = 'file:///x')", "s"),
        ("risingwave", f"CREATE SOURCE s WITH ({ICEBERG}, warehouse.path = 'a name')", "s"),
        ("risingwave", f"CREATE SOURCE s WITH ({SQLITE}, warehouse.path = 's3://x/y')", "s"),
        (
            "risingwave",
            f"CREATE SINK s AS SELECT 1 AS a WITH ({ICEBERG}, warehouse.path = '/x', type = 'append-only')",
            "connector",
        ),
        (
            "risingwave",
            (
                "CREATE SOURCE s (a int) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = "
                "'127.0.0.1:1') FORMAT PLAIN ENCODE PROTOBUF (schema.location = 'file:///x', message = 'm')"
            ),
            "s",
        ),
        (
            "risingwave",
            (
                "CREATE SOURCE s (*) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = "
                "'127.0.0.1:1') FORMAT PLAIN ENCODE AVRO (schema.location = 'file:///x')"
            ),
            "s",
        ),
        (
            "timeplus",
            "CREATE DICTIONARY s (a int) PRIMARY KEY a SOURCE(FILE(path '/etc/passwd' format 'CSV')) LAYOUT(FLAT())",
            "FILE",
        ),
    ],
)
def test_refused(connection, dialect, statement, place):
    connection.execute(f"SET dialect = '{dialect}'")
    with pytest.raises(watersmeet.Error) as refused:
        connection.execute(statement)
    err = refused.value
    assert (err.condition, err.sqlstate) == ("FILES_NOT_ALLOWED", "42501")
    assert err.sql[err.span.start : err.span.end].startswith(place)
    assert "allow_files" in err.hint
    connection.execute("SET dialect = 'risingwave'")
    connection.execute("DROP TABLE IF EXISTS u")
    assert "s" not in [name for name, *_ in connection.execute("SHOW RELATIONS").fetchall()]


def test_duckdb_itself_is_closed(connection):
    """What a query could do if it came past the binder."""
    with connection._session.database.content.session() as duck, pytest.raises(Exception, match=r"Permission|disabled"):
        duck.execute("SELECT * FROM read_csv('/etc/passwd')")


def test_files_may_be_read_in_ones_own_process(tmp_path):
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    with watersmeet.connect(runtime="inprocess") as opened:
        assert opened.execute(f"SELECT sum(a) FROM read_csv('{tmp_path}/x.csv')").fetchall() == [(3,)]


def test_what_exists_goes_on(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as opened:
        opened.execute(f"CREATE TABLE t (a int) WITH (connector = 'file', path = '{folder}', format = 'csv')")
        opened.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    (folder / "x.csv").write_text("a\n7\n")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", allow_files=False) as opened:
        opened.execute("FLUSH")
        assert opened.execute("SELECT * FROM v").fetchall() == [(7,)]
