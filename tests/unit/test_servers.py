"""The servers of tests, of `make kafka` and of `make databases`: they answer, keep what they acknowledged, and end
with their owner.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import psycopg
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from scripts.servers.archives import Artifact, Bundle, ServerUnavailableError, cache_folder, fetch
from scripts.servers.process import Process, ServerFailedError, free_ports
from tests.waiting import until

import watersmeet

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
CACHE = cache_folder().parents[1]


def values(broker, name, partition=0):
    consumer = broker.consumer(**{"enable.partition.eof": True})
    consumer.assign([TopicPartition(name, partition, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    return found


def produce(broker, name, value, partition=0):
    """Gives the errors of the delivery."""
    producer, errors = broker.producer(), []
    producer.produce(name, value, b"k", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return [error for error in errors if error is not None]


def ends(process_id):
    """Waits until there is no such process, or nobody has asked for its end yet."""
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{process_id}/stat").read_text().split()[2] != "Z":
            time.sleep(0.05)
    return True


def test_each_test_has_topics_of_its_own(broker, topic):
    one, three = topic(), topic(partitions=3, cleanup_policy="compact")
    assert produce(broker, three, b"x", partition=2) == []
    topics = broker.admin().list_topics(timeout=30).topics
    assert len(topics[one].partitions) == 1
    assert len(topics[three].partitions) == 3
    assert values(broker, three, 2) == [b"x"]
    assert values(broker, one) == []


def test_a_typing_error_makes_no_topic(broker, topic):
    wrong = f"{topic()}x"
    broker.admin().list_topics(wrong, timeout=30)  # would make it
    assert wrong not in broker.admin().list_topics(timeout=30).topics


def test_clients_with_credentials_and_over_tls(broker):
    for settings in (broker.sasl(), broker.sasl("SCRAM-SHA-256"), broker.tls()):
        assert AdminClient(settings).list_topics(timeout=30).brokers


@pytest.mark.parametrize("wrong", ["password", "certificate"])
def test_wrong_credentials_are_refused(broker, wrong):
    errors = []
    ways = {"password": broker.sasl(password="wrong"), "certificate": broker.tls() | {"ssl.ca.location": "probe"}}
    client = AdminClient({**ways[wrong], "log_level": 0, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    client.poll(1)
    assert {"password": "_AUTHENTICATION", "certificate": "_SSL"}[wrong] in {error.name() for error in errors}


@pytest.mark.slow
def test_a_broker_that_was_killed_or_paused_goes_on_with_what_it_acknowledged(own_broker):
    own_broker.create_topic("t", 2)
    assert produce(own_broker, "t", b"before") == []
    process_id = own_broker.pid
    own_broker.kill()
    assert not own_broker.is_running
    assert not own_broker.answers()
    own_broker.start()
    assert own_broker.pid != process_id
    assert produce(own_broker, "t", b"after") == []
    assert values(own_broker, "t") == [b"before", b"after"]

    own_broker.pause()
    assert not own_broker.answers()
    own_broker.resume()
    assert own_broker.answers()


def test_a_database_server_that_was_killed_goes_on_with_what_it_acknowledged(own_mysql):
    own_mysql.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    own_mysql.server.kill()
    assert not own_mysql.server.answers()
    own_mysql.server.start()
    assert own_mysql.execute("SELECT id FROM t") == ((1,),)
    assert own_mysql.execute("SELECT @@binlog_format, @@binlog_row_metadata") == (("ROW", "FULL"),)


def test_a_killed_database_server_starts_again_while_a_process_of_it_still_ends(own_postgres):
    server, log = own_postgres.server, own_postgres.server.folder / "postgres.log"
    with own_postgres.connect() as connection:
        (slow,) = connection.execute("SELECT pg_backend_pid()").fetchone()
        os.kill(slow, signal.SIGSTOP)
        server.kill()
        starting = Thread(target=server.start)
        starting.start()
        until(lambda: "pre-existing shared memory block" in log.read_text(errors="replace"))
        os.kill(slow, signal.SIGCONT)
        starting.join()
    assert server.answers()


def test_the_registry_keeps_schemas(registry, topic):
    subject = f"{topic()}-value"

    def ask(path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        with urlopen(Request(registry.url + path, data, headers), timeout=30) as answer:
            return json.load(answer)

    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    made = ask(f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})["id"]
    assert json.loads(ask(f"/schemas/ids/{made}")["schema"]) == schema
    assert ask(f"/subjects/{subject}/versions") == [1]


OWNER = """
import pathlib, sys, time
from scripts.servers.process import Process
folder = pathlib.Path(sys.argv[1])
print(Process(sys.argv[2:], folder / "log", folder=folder).pid, flush=True)
time.sleep(1000)
"""


def sinks(connection):
    """What SHOW SINKS says."""
    cursor = connection.execute("SHOW SINKS")
    return [dict(zip([c[0] for c in cursor.description], row, strict=True)) for row in cursor.fetchall()]


@pytest.mark.slow
def test_what_make_databases_prints_connects_all_of_them(postgres, mysql, bucket, tmp_path):
    """Its servers are its own; the fixtures say whether there can be any."""
    command = [sys.executable, "-u", "-m", "scripts.servers", "databases"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        try:
            lines = list(iter(run.stdout.readline, "-- Ctrl-C ends the servers and removes what they keep.\n"))
            starts, addresses, script = "".join(lines).split("\n\n")
            assert starts.splitlines() == ["starting PostgreSQL", "starting MariaDB", "starting the S3 server"]
            assert [line.split()[0] for line in addresses.splitlines()] == ["PostgreSQL", "MariaDB", "S3", "Iceberg"]
            with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
                connection.execute(script)
                with psycopg.connect(addresses.split()[1], autocommit=True) as there:
                    there.execute("UPDATE items SET name = 'desk' WHERE id = 2")
                connection.execute("FLUSH")
                wanted = [(1, "lamp"), (2, "desk")]
                assert connection.execute("SELECT * FROM items ORDER BY id").fetchall() == wanted
                while not all(row["delivered_rows"] and not row["commits_behind"] for row in sinks(connection)):
                    time.sleep(0.05)
                assert len(sinks(connection)) == 3
        finally:
            run.send_signal(signal.SIGINT)
        assert run.stdout.read().endswith("ended; what they kept is gone\n")
    assert run.returncode == 0
    assert all(ends(number) for number in re.findall(r"process (\d+)", addresses))


def test_a_server_ends_with_its_owner_however_that_one_ends(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    owner = subprocess.Popen(
        [
            *(sys.executable, "-c", OWNER, str(folder)),
            *(sys.executable, "-c", "import time; time.sleep(1000)"),
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    server = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    assert ends(server)
    while folder.exists():
        time.sleep(0.05)


def test_a_server_that_ends_while_it_starts_says_its_log(tmp_path):
    process = Process([sys.executable, "-c", "print('no such setting'); exit(3)"], tmp_path / "log")
    with pytest.raises(ServerFailedError, match="no such setting"):
        process.wait_until(lambda: False, "the server")


def test_a_database_server_that_can_not_make_its_tables_says_why(mysql, tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.servers.mariadb._SETTINGS", "[mariadbd]\nno_such_setting = 1\n")
    with pytest.raises(ServerFailedError, match="unknown variable 'no_such_setting=1'"):
        type(mysql.server).started(tmp_path / "server")


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


def test_what_can_not_be_fetched_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = tmp_path / "ivysettings.xml"  # no repository but an empty folder
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("WATERSMEET_IVY_SETTINGS", str(settings))
    with pytest.raises(ServerUnavailableError, match="nothing-1"):
        fetch(Bundle("nothing-1", (Artifact("org.example", "nothing", "1"),), size_mb=1))
    assert [path.name for path in (tmp_path / "watersmeet" / "servers").iterdir()] == ["nothing-1.lock"]


@pytest.mark.parametrize("processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_tests_without_a_broker_are_skipped_and_counted(pytester, monkeypatch, processes):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = kafka: of the fixtures")
    pytester.makepyfile("def test_one(broker): pass\ndef test_two(topic): pass\ndef test_three(registry): pass")
    result = pytester.runpytest_subprocess("-p", "tests.servers", *processes)
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        [
            "*NOT TESTED HERE*",
            "2 tests skipped: a Kafka broker can't be had here: no Java on this machine",
            "1 tests skipped: a schema registry can't be had here: no Java on this machine",
        ]
    )


@pytest.mark.slow
def test_one_broker_for_all_processes_of_a_run_ends_with_it(broker, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))  # pytester has a home of its own
    pytester.makeini("[pytest]\nmarkers = kafka: of the fixtures")
    pytester.makepyfile(
        """
        import pathlib, pytest
        @pytest.mark.parametrize("number", range(4))
        def test_port(broker, number):
            pathlib.Path(f"{broker.ports.plain}.port").touch()
            pathlib.Path("folder").write_text(str(broker.folder))
        def test_that_fails(topic):
            assert topic() is None
        """
    )
    result = pytester.runpytest_subprocess("-p", "tests.servers", "-n", "2")
    result.assert_outcomes(passed=4, failed=1)
    (port,) = pytester.path.glob("*.port")
    assert port.stem != str(broker.ports.plain)
    assert not Path((pytester.path / "folder").read_text()).exists()
