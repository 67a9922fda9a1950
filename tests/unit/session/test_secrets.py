"""Secrets: options refer to them by name, and nothing shows or stores their values but one private file."""

import json
import stat

import pytest

import watersmeet
from watersmeet.errors import Error
from watersmeet.formats.registry import open_registry
from watersmeet.kafkaclient import client_config
from watersmeet.secretvalues import reference
from watersmeet.store.layout import Layout
from watersmeet.store.secretfiles import create_secret

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


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (MAKE, "DUPLICATE_OBJECT"),
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
