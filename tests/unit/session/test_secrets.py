"""Secrets: options refer to them by name, and nothing shows or stores their values but one private file."""

import json
import stat
from pathlib import Path

import pytest
from scripts.servers.postgres import PASSWORD, USER
from tests.waiting import until

import watersmeet
from watersmeet.connectors.kafka.client import client_config
from watersmeet.errors import Error
from watersmeet.formats.registry import open_registry
from watersmeet.store.layout import Layout
from watersmeet.store.positions import create_secret
from watersmeet.system.secretvalues import reference, revealed

VALUE = "open sesame 4711"
MAKE = f"CREATE SECRET s WITH (backend = 'meta') AS '{VALUE}'"


def files_with(path, text):
    return [f for f in path.rglob("*") if f.is_file() and text.encode() in f.read_bytes()]


def test_names_are_listed_and_dropped(run):
    run(MAKE)
    run("CREATE SECRET other WITH (backend = 'meta') AS 'x'")
    assert run("SHOW SECRETS") == [("other",), ("s",)]
    assert run("SHOW SECRETS LIKE 'o%'") == [("other",)]
    run("DROP SECRET other")
    run("DROP SECRET IF EXISTS other")
    run(MAKE.replace("SECRET s", "SECRET IF NOT EXISTS s"))
    assert run("SHOW SECRETS") == [("s",)]


@pytest.mark.parametrize("backend", ["", " WITH (backend = 'meta')"])
def test_another_value_replaces_the_first(tmp_path, backend):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(MAKE)
        layout = connection.opened.layout
        assert revealed(reference("s", layout.id)) == VALUE
        connection.execute(f"ALTER SECRET s{backend} AS 'another 9'")
        assert revealed(reference("s", layout.id)) == "another 9"
        (file,) = files_with(tmp_path, "another 9") or [None]
        assert file is None or stat.S_IMODE(file.stat().st_mode) == 0o600
        assert not files_with(tmp_path, VALUE)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (MAKE, "DUPLICATE_OBJECT"),
        (f"ALTER SECRET nobody AS '{VALUE}'", "UNDEFINED_OBJECT"),
        ("DROP SECRET nobody", "UNDEFINED_OBJECT"),
        (MAKE.replace("meta", "hashicorp_vault"), "FEATURE_NOT_SUPPORTED"),
        (f"EXPLAIN {MAKE}", "FEATURE_NOT_SUPPORTED"),
    ],
)
def test_errors_do_not_show_the_value(run, text, condition):
    run(MAKE)
    with pytest.raises(Error) as caught:
        run(text)
    assert caught.value.condition == condition
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "condition"),
    [("properties.sasl.password = SECRET nobody", "UNDEFINED_OBJECT"), ("topic = SECRET s", "FEATURE_NOT_SUPPORTED")],
)
def test_what_an_option_can_not_refer_to(run, option, condition):
    run(MAKE)
    with pytest.raises(Error) as caught:
        run(
            f"""CREATE SOURCE k (id int)
                WITH (connector = 'kafka', properties.bootstrap.server = 'localhost:1', {option})
                FORMAT PLAIN ENCODE JSON"""
        )
    assert caught.value.condition == condition


def test_clients_get_the_value(tmp_path):
    layout = Layout(tmp_path / "db")
    create_secret(layout, "s", VALUE)
    found = reference("s", layout.id)
    assert client_config({"sasl.password": found, "sasl.username": "me"})["sasl.password"] == VALUE
    registry = open_registry(
        {"schema.registry": "localhost:1", "schema.registry.username": "me", "schema.registry.password": found}
    )
    assert registry is open_registry(
        {"schema.registry": "localhost:1", "schema.registry.username": "me", "schema.registry.password": VALUE}
    )


def test_a_source_reads_by_a_secret_that_only_one_file_has(broker, topic, tmp_path):
    name, path = topic(retention_ms=-1), tmp_path / "db"
    producer = broker.producer()
    producer.produce(name, b'{"id": 7}')
    producer.flush()
    with watersmeet.connect(path, runtime="inprocess", file_permissions="umask") as connection:
        cursor = connection.cursor()
        cursor.execute(MAKE)
        cursor.execute(
            f"""CREATE SOURCE k (id int) WITH (connector = 'kafka', topic = '{name}',
                properties.bootstrap.server = '{broker.bootstrap}', properties.sasl.password = SECRET s)
                FORMAT PLAIN ENCODE JSON"""
        )
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM k")
        cursor.execute("FLUSH")
        cursor.execute("SELECT * FROM v")
        assert cursor.fetchall() == [(7,)]
        cursor.execute("SHOW CREATE SOURCE k")
        assert "properties.sasl.password = SECRET s" in cursor.fetchone()[1]
        assert VALUE not in json.dumps(connection.status(), default=str)
        with pytest.raises(Error, match="cannot drop secret") as caught:
            cursor.execute("DROP SECRET s")
        assert caught.value.condition == "DEPENDENT_OBJECTS"
    (file,) = files_with(path, VALUE)
    assert file.parent.name == "secrets"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with watersmeet.connect(path, runtime="inprocess") as connection:
        producer.produce(name, b'{"id": 8}')
        producer.flush()
        cursor = connection.cursor()
        cursor.execute("FLUSH")
        cursor.execute("SELECT * FROM v ORDER BY id")
        assert cursor.fetchall() == [(7,), (8,)]
        cursor.execute("DROP MATERIALIZED VIEW v; DROP SOURCE k; DROP SECRET s")
    assert not files_with(path, VALUE)


def there(postgres):
    with postgres.connect() as connection:
        return connection.execute("SELECT i FROM there").fetchall()


def test_values_that_are_outside_are_looked_up_each_time(tmp_path, monkeypatch):
    file = tmp_path / "value"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE SECRET e WITH (backend = 'env', name = 'OPEN_SESAME')")
        connection.execute(f"CREATE SECRET f WITH (backend = 'file', path = '{file}')")
        ids = connection._session.database.layout.id
        by_env, by_file = reference("e", ids), reference("f", ids)
        with pytest.raises(
            Error, match=r'secret "e" can.t be read: its value is in the environment variable OPEN'
        ) as e:
            revealed(by_env)
        with pytest.raises(Error, match=r'secret "f" can.t be read: its value is in the file /') as f:
            revealed(by_file)
        assert {e.value.condition, f.value.condition} == {"RUNTIME_UNAVAILABLE"}
        for value in (VALUE, "another"):
            monkeypatch.setenv("OPEN_SESAME", value)
            file.write_text(f"{value}\n")
            assert revealed(by_env) == revealed(by_file) == value
    assert not files_with(tmp_path / "db", VALUE)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess"):
        assert revealed(by_env) == "another"


@pytest.mark.parametrize(
    "options",
    [
        "backend = 'env'",
        "backend = 'env', name = ''",
        "backend = 'env', path = '/x'",
        "backend = 'file', path = '/x', y = '1'",
    ],
)
def test_where_values_are_has_to_be_said(run, options):
    with pytest.raises(Error, match=r"has the option (name|path) alone") as refused:
        run(f"CREATE SECRET s WITH ({options})")
    assert refused.value.condition == "CONNECTOR_OPTION"
    assert refused.value.span is not None


@pytest.mark.parametrize("options", ["backend = 'env', name = 'HOME'", "backend = 'file', path = '/etc/passwd'"])
def test_who_may_read_no_files_gets_no_values_from_outside(options):
    with watersmeet.connect(runtime="inprocess", allow_files=False) as connection:
        with pytest.raises(Error, match=r"a secret of backend (env|file) is not possible") as refused:
            connection.execute(f"CREATE SECRET s WITH ({options})")
        assert refused.value.condition == "FILES_NOT_ALLOWED"
        assert connection.execute("SHOW SECRETS").fetchall() == []


@pytest.mark.parametrize("backend", ["env", "file"])
def test_a_sink_waits_for_its_password(tmp_path, postgres, backend, monkeypatch):
    """A real server, of which the password becomes known when the sink is there."""
    file, variable = tmp_path / "password", "WATERSMEET_TEST_PASSWORD"
    where = {"env": f"name = '{variable}'", "file": f"path = '{file}'"}[backend]

    def tell(value):
        file.write_text(value)
        monkeypatch.setenv(variable, value)

    tell(PASSWORD)
    postgres.execute("CREATE TABLE there (i int PRIMARY KEY)")
    server = postgres.server
    options = f"host = '127.0.0.1', port = '{server.port}', database = '{postgres.name}', user = '{USER}'"
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"CREATE SECRET s WITH (backend = '{backend}', {where})")
        connection.execute("CREATE TABLE t (i int PRIMARY KEY)")
        connection.execute(
            f"CREATE SINK k FROM t WITH (connector = 'postgres', {options}, password = SECRET s, "
            "table = 'there', type = 'upsert', primary_key = 'i')"
        )
    file.unlink()
    monkeypatch.delenv(variable)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("FLUSH")
        until(lambda: 'secret "s" can' in str(connection.execute("SHOW SINKS").fetchall()))
        tell(PASSWORD)
        until(lambda: there(postgres) == [(1,)])
        assert PASSWORD not in str(connection.execute("SHOW CREATE SINK k").fetchall())


def test_a_source_waits_for_its_password(tmp_path, broker, topic, monkeypatch):
    name = topic()
    producer = broker.producer()
    monkeypatch.setenv("WATERSMEET_TEST_PASSWORD", VALUE)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE SECRET s WITH (backend = 'env', name = 'WATERSMEET_TEST_PASSWORD')")
        connection.execute(f"""
            CREATE SOURCE k (id int) WITH (connector = 'kafka', topic = '{name}',
                properties.bootstrap.server = '{broker.bootstrap}', properties.sasl.password = SECRET s)
            FORMAT PLAIN ENCODE JSON;
            CREATE MATERIALIZED VIEW v AS SELECT * FROM k
        """)
    monkeypatch.delenv("WATERSMEET_TEST_PASSWORD")
    producer.produce(name, b'{"id": 7}')
    producer.flush()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.execute("FLUSH")
        assert any('secret "s" can' in notice for notice in cursor.notices)
        monkeypatch.setenv("WATERSMEET_TEST_PASSWORD", VALUE)

        def is_there():
            connection.execute("FLUSH")
            return connection.execute("SELECT * FROM v").fetchall() == [(7,)]

        until(is_there)


def test_a_secret_is_the_content_of_a_file(tmp_path, broker, topic):
    """RisingWave, "Manage secrets": `SECRET name AS FILE`, for certificates and keys."""
    name, tls = topic(), broker.tls()
    content = Path(tls["ssl.ca.location"]).read_text()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"CREATE SECRET ca WITH (backend = 'meta') AS '{content}'")
        connection.execute(f"""
            CREATE SOURCE k (id int) WITH (connector = 'kafka', topic = '{name}',
                properties.bootstrap.server = '{tls["bootstrap.servers"]}', properties.security.protocol = 'SSL',
                properties.ssl.ca.location = SECRET ca AS FILE) FORMAT PLAIN ENCODE JSON;
            CREATE MATERIALIZED VIEW v AS SELECT * FROM k
        """)
        producer = broker.producer()
        producer.produce(name, b'{"id": 7}')
        producer.flush()
        connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM v").fetchall() == [(7,)]
        shown = connection.execute("SHOW CREATE SOURCE k").fetchone()[1]
        assert "SECRET ca AS FILE" in shown
