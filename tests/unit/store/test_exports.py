"""An exported and imported database has the same content, and goes on where the exported one was."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from scripts.golden import TABLES, VIEWS, content, statements
from scripts.servers.postgres import PASSWORD
from tests import captures
from tests.richtexts import run_text
from tests.unit.store.test_golden import CHANGES, batch
from tests.waiting import until
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.commands import app
from watersmeet.database import exporting, importing
from watersmeet.database.exporting import export_database, restored
from watersmeet.database.importing import import_database
from watersmeet.errors import Error
from watersmeet.server.catalog.definitions import script_of
from watersmeet.system.passwords import Verifier
from watersmeet.testing import parse_file
from watersmeet.values.types import INTERVAL

HERE = Path(__file__).parent
TEXTS = HERE.parents[1] / "slt"


def opened(path, **options):
    return watersmeet.connect(path, runtime="inprocess", **options)


def moved(source, folder, secrets=(), **options):
    """The path of a new database with what another one has."""
    export_database(source, folder / "export", script_of)
    import_database(folder / "export", folder / "imported", dict(secrets), **options)
    return folder / "imported"


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """A database with every kind of view, and one transaction that no epoch has reflected."""
    path = tmp_path_factory.mktemp("golden") / "db"
    with opened(path, parallelism=2) as connection:
        for text in statements():
            connection.execute(text)
        connection.execute("COMMENT ON TABLE items IS 'it''s'; GRANT SELECT ON items TO ann")
        connection.execute("CREATE SEQUENCE numbers; CREATE TYPE mood AS ENUM ('sad', 'glad')")
        connection.execute("CREATE TABLE numbered (id serial PRIMARY KEY, m mood, i interval, l interval[])")
        connection.execute("INSERT INTO numbered (m, i, l) VALUES ('glad', '1 month 2 days', ARRAY[interval '3 s'])")
        connection.execute("INSERT INTO numbered (m) VALUES ('sad'); SELECT nextval('numbers'); FLUSH")
        connection.execute("DELETE FROM orders WHERE id = 3; INSERT INTO items VALUES (77, 'late')")
    return path


SECRETS = {"ann.verifier": str(Verifier.of("again"))}


@pytest.mark.parametrize("rebuild", [False, True])
def test_it_has_the_content_and_goes_on(golden, tmp_path, rebuild):
    path = moved(golden, tmp_path, SECRETS, rebuild=rebuild)
    assert {p.name for p in tmp_path.iterdir()} == {"export", "imported"}, "nothing temporary is left"
    shutil.copytree(golden, tmp_path / "copy")
    with opened(tmp_path / "copy") as original, opened(path) as connection:
        for each in (original, connection):
            each.execute("FLUSH")
        assert content(connection) == content(original)
        assert connection.execute("SELECT * FROM numbered ORDER BY id").fetchall() == (
            original.execute("SELECT * FROM numbered ORDER BY id").fetchall()
        )
        for text in CHANGES:
            for each in (original, connection):
                each.execute(text)
                each.execute("FLUSH")
        assert content(connection) == content(original)
        assert {n: rows for n, rows in content(connection).items() if n in VIEWS} == batch(connection)
        connection.execute("INSERT INTO numbered (m) VALUES ('sad'); FLUSH")
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM numbered").fetchall() == [(3, 3)]
        assert connection.execute("SELECT nextval('numbers') > 1").fetchall() == [(True,)]
        assert [r[1] for r in connection.execute("SHOW CREATE TABLE items").fetchall()] == [
            r[1] for r in original.execute("SHOW CREATE TABLE items").fetchall()
        ]


def test_it_can_be_exported_again(golden, tmp_path):
    path = moved(golden, tmp_path, SECRETS)
    with opened(path) as connection:
        connection.execute("FLUSH; DELETE FROM items WHERE item = 1; FLUSH")
        expected = content(connection)
    (tmp_path / "second").mkdir()
    again = moved(path, tmp_path / "second", SECRETS)
    with opened(again) as connection:
        assert content(connection) == expected


def test_the_script_makes_the_same_objects(golden, tmp_path):
    export_database(golden, tmp_path / "export", script_of)
    text = (tmp_path / "export" / "definitions.sql").read_text()
    with opened(tmp_path / "new") as made:
        list(made.execute_script(text, transaction=False))
        with watersmeet.connect(golden, read_only=True) as original:
            for show in ("TABLES", "MATERIALIZED VIEWS", "VIEWS", "SUBSCRIPTIONS", "SEQUENCES", "FUNCTIONS", "USERS"):
                each = [[r[:3] for r in c.execute(f"SHOW {show}").fetchall()] for c in (made, original)]
                assert each[0] == each[1], show
    assert "SCRAM" not in text


def test_files_are_plain_and_have_no_secrets(golden, tmp_path):
    made = export_database(golden, tmp_path / "export", script_of)
    assert list(made.secrets) == ["ann.verifier"]
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text())["manifest"]
    items = next(r for r in manifest["relations"].values() if r["name"] == "items")
    rows = pa.concat_tables([pq.read_table(tmp_path / "export" / f) for f in items["files"]])
    assert (rows.column_names, rows.num_rows) == (["item", "name"], items["rows"])
    stored = (golden / "secrets").iterdir()
    values = [json.loads(p.read_text().splitlines()[1]) for p in stored]
    assert values
    for file in (tmp_path / "export").rglob("*"):
        assert file.is_dir() or not any(v.encode() in file.read_bytes() for v in values)


def test_intervals_survive(tmp_path):
    kind = pa.list_(pa.struct([("a", INTERVAL.arrow), ("b", pa.int64())]))
    span = pa.MonthDayNano([1, -2, 3])
    values = [[{"a": span, "b": 1}, None, {"a": None, "b": 2}], None, []]
    table = pa.table({"x": pa.array(values, kind), "i": pa.array([span, None, span], INTERVAL.arrow)})
    for part in (table, table.slice(1), table.slice(0, 0)):
        sink = pa.BufferOutputStream()
        pq.write_table(exporting._portable(part), sink)
        assert restored(sink.getvalue().to_pybytes()).equals(part)


def test_missing_secrets_are_named_together(golden, tmp_path):
    export_database(golden, tmp_path / "export", script_of)
    call = CliRunner().invoke
    refused = call(app, ["import", str(tmp_path / "export"), str(tmp_path / "db")])
    assert refused.exit_code == 1
    assert "ann.verifier" in refused.stderr
    (tmp_path / "secrets.json").write_text(json.dumps({**SECRETS, "other": "x"}))
    arguments = ["import", str(tmp_path / "export"), str(tmp_path / "db"), "--secrets", str(tmp_path / "secrets.json")]
    assert "no secrets other" in call(app, arguments).stderr
    (tmp_path / "secrets.json").write_text(json.dumps(SECRETS))
    done = call(app, arguments)
    assert (done.exit_code, "exported contents" in done.stdout) == (0, True), done.stderr
    assert "is not empty" in call(app, arguments).stderr


def test_damage_is_found(golden, tmp_path):
    export_database(golden, tmp_path / "export", script_of)
    names = sorted(p for p in (tmp_path / "export").rglob("*") if p.is_file())
    for file in [*random.Random(1).sample(names, 8), tmp_path / "export" / "manifest.json"]:
        data = file.read_bytes()
        place = len(data) // 2
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(Error) as refused:
            import_database(tmp_path / "export", tmp_path / "db", SECRETS)
        assert refused.value.condition == "DATABASE_DAMAGED"
        file.write_bytes(data)
        assert not (tmp_path / "db").exists()
    (tmp_path / "export" / "manifest.json").unlink()
    with pytest.raises(Error, match="no complete export"):
        import_database(tmp_path / "export", tmp_path / "db", SECRETS)


@pytest.mark.parametrize(
    "name", ["sources/../../stolen.saved", "sources/.", "dead/../x", "sources//x", "relations/a b"]
)
def test_names_stay_in_their_folders(golden, tmp_path, name):
    """Anyone may have made an export."""
    export_database(golden, tmp_path / "export", script_of)
    path = tmp_path / "export" / "manifest.json"
    manifest = json.loads(path.read_text())["manifest"]
    manifest["files"][name] = [0, hashlib.sha256(b"").hexdigest()]
    digest = hashlib.sha256(json.dumps(manifest, indent=1).encode()).hexdigest()
    path.write_text(json.dumps({"manifest": manifest, "sha256": digest}))
    with pytest.raises(Error, match="is no name of a file"):
        import_database(tmp_path / "export", tmp_path / "db", SECRETS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export"]


@pytest.mark.parametrize("step", ["_contents", "_states", "_services"])
def test_an_interrupted_import_leaves_nothing(golden, tmp_path, monkeypatch, step):
    export_database(golden, tmp_path / "export", script_of)

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(importing._Import, step, fail)
        with pytest.raises(KeyboardInterrupt):
            import_database(tmp_path / "export", tmp_path / "db", SECRETS)
    assert {p.name for p in tmp_path.iterdir()} == {"export"}
    import_database(tmp_path / "export", tmp_path / "db", SECRETS)


def test_contents_are_compared_after_the_import(golden, tmp_path, monkeypatch):
    export_database(golden, tmp_path / "export", script_of)
    written = importing._Import._written
    monkeypatch.setattr(importing._Import, "_written", lambda self, w, r, names: written(self, w, r, [*names, *names]))
    with pytest.raises(Error, match="not those of the manifest"):
        import_database(tmp_path / "export", tmp_path / "db", SECRETS)
    assert not (tmp_path / "db").exists()


def test_other_forms_are_refused(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "STATE_FORMAT_VERSION", 6)
    export_database(golden, tmp_path / "export", script_of)
    with pytest.raises(Error, match="state of format 6") as refused:
        import_database(tmp_path / "export", tmp_path / "db", SECRETS)
    assert "--rebuild" in refused.value.hint
    import_database(tmp_path / "export", tmp_path / "db", SECRETS, rebuild=True)
    monkeypatch.setattr(exporting, "EXPORT_VERSION", 2)
    export_database(golden, tmp_path / "newer", script_of)
    with pytest.raises(Error, match="has version 2"):
        import_database(tmp_path / "newer", tmp_path / "db2", SECRETS)


def test_beside_a_writer_it_has_one_commit(tmp_path):
    with opened(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (v int) APPEND ONLY")
        connection.execute("CREATE MATERIALIZED VIEW j AS SELECT a.id, a.v, b.v AS w FROM a JOIN b ON a.v = b.v")
        connection.execute("INSERT INTO a SELECT g, 0 FROM generate_series(0, 9) AS g(g); INSERT INTO b VALUES (0)")
        stop = threading.Event()

        def write():
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute(f"BEGIN; UPDATE a SET v = {number}; INSERT INTO b VALUES ({number}); COMMIT")
                if number % 3:
                    connection.execute("FLUSH")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(3):
                (tmp_path / str(number)).mkdir()
                moved(tmp_path / "db", tmp_path / str(number))
        finally:
            stop.set()
            writer.join()
    for number in range(3):
        with opened(tmp_path / str(number) / "imported") as connection:
            connection.execute("FLUSH")
            (found,) = connection.execute("SELECT min(v), max(v), count(*) FROM a").fetchall()
            assert found[0] == found[1]
            assert connection.execute("SELECT DISTINCT v, w FROM j").fetchall() == [(found[0], found[0])]
            assert connection.execute("SELECT count(*) FROM b").fetchall() == [(found[0] + 1,)]


def delivered(folder):
    """The rows in files of a sink."""
    files = [f for f in folder.rglob("*.json") if not f.name.startswith(("_", ".")) and f.parent.name[:1] not in "_."]
    return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())


def test_readers_of_changes_receive_each_once(tmp_path):
    out = tmp_path / "out"
    with opened(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        connection.execute("INSERT INTO t VALUES (1, 1), (2, 2); FLUSH")
        connection.execute(
            f"CREATE SINK k FROM v WITH (connector = 'fs', fs.path = '{out}', type = 'append-only', "
            "force_append_only = 'true') FORMAT PLAIN ENCODE JSON"
        )
        connection.execute("INSERT INTO t VALUES (3, 3); FLUSH")
        until(lambda: delivered(out) == [1, 2, 3])
        with connection.subscribe("v") as subscriber:
            token = next(iter(subscriber)).commit
    made = export_database(tmp_path / "db", tmp_path / "export", script_of)
    assert made.waiting == []
    import_database(tmp_path / "export", tmp_path / "imported", {})
    with opened(tmp_path / "imported") as connection:
        connection.execute("INSERT INTO t VALUES (4, 4); FLUSH")
        until(lambda: delivered(out) == [1, 2, 3, 4])
        with connection.subscribe("v", after=token) as subscriber:
            update = next(iter(subscriber))
            assert [b.rows.column(0).to_pylist() for b in update.batches] == [[4]]


def test_what_a_sink_has_not_received_is_exported(tmp_path):
    out = tmp_path / "out"
    with opened(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        connection.execute("INSERT INTO t VALUES (1, 1), (2, 2); FLUSH")
        connection.execute(
            f"CREATE SINK k FROM v WITH (connector = 'fs', fs.path = '{out}', type = 'append-only', "
            "force_append_only = 'true') FORMAT PLAIN ENCODE JSON"
        )
        until(lambda: delivered(out) == [1, 2])
        connection.execute("ALTER SINK k SET SINK_RATE_LIMIT TO 0")
        for number in (3, 4):
            connection.execute(f"INSERT INTO t VALUES ({number}, {number}); FLUSH")
        assert delivered(out) == [1, 2]
    made = export_database(tmp_path / "db", tmp_path / "export", script_of)
    assert made.waiting == []
    import_database(tmp_path / "export", tmp_path / "imported", {})
    with opened(tmp_path / "imported") as connection:
        connection.execute("INSERT INTO t VALUES (5, 5); FLUSH")
        connection.execute("ALTER SINK k SET SINK_RATE_LIMIT TO DEFAULT")
        until(lambda: delivered(out) == [1, 2, 3, 4, 5])


def test_files_go_on_from_their_positions(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()

    def write(number):
        (folder / f"{number}.json").write_text(f'{{"id": {number}}}\n{{"id": 100}}\nbad\n')

    with opened(tmp_path / "db") as connection:
        connection.execute(
            f"CREATE SOURCE s (id int) WITH (connector = 'file', path = '{folder}', format = 'json', settle_ms = 0)"
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id, count(*) AS n FROM s GROUP BY id")
        connection.execute(f"CREATE SINK k FROM v WITH (connector = 'file', path = '{out}', type = 'append-only', "
                           "force_append_only = 'true') FORMAT PLAIN ENCODE JSON")  # fmt: skip
        for number in range(3):
            write(number)
            connection.execute("FLUSH")
        expected = connection.execute("SELECT * FROM v ORDER BY id").fetchall()
    made = export_database(tmp_path / "db", tmp_path / "export", script_of)
    for number in range(3):
        (folder / f"{number}.json").unlink()
    import_database(tmp_path / "export", tmp_path / "imported", {})
    with opened(tmp_path / "imported") as connection:
        connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM v ORDER BY id").fetchall() == expected
        write(3)
        connection.execute("FLUSH")
        assert connection.execute("SELECT n FROM v WHERE id IN (3, 100) ORDER BY id").fetchall() == [(1,), (4,)]
        assert connection.execute("SHOW DEAD LETTERS").fetchall()
    assert made.waiting in ([], ['sink "k"'])


@pytest.mark.kafka
def test_kafka_goes_on_from_its_offsets(broker, topic, tmp_path):
    topic = topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def send(*numbers):
        for number in numbers:
            producer.produce(topic, json.dumps({"n": number}).encode())
        producer.flush()

    with opened(tmp_path / "db") as connection:
        connection.execute(
            f"CREATE SOURCE s (n bigint) WITH (connector = 'kafka', topic = '{topic}', "
            f"properties.bootstrap.server = '{broker.bootstrap}', scan.startup.mode = 'earliest') "
            "FORMAT PLAIN ENCODE JSON"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT n % 2 AS p, sum(n) AS s, count(*) AS c FROM s GROUP BY 1"
        )
        send(1, 2, 3)
        connection.execute("FLUSH")
    path = moved(tmp_path / "db", tmp_path)
    send(4, 5)
    with opened(path) as connection:
        connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM v ORDER BY p").fetchall() == [(0, 6, 2), (1, 9, 3)]


def test_captured_tables_go_on_from_their_positions(postgres, tmp_path):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2)")
    with opened(tmp_path / "db") as connection:
        captures.source(connection, postgres)
        connection.execute("CREATE TABLE t (*) FROM there TABLE 'public.t'")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c, sum(n) AS n FROM t")
        assert captures.rows(connection, "SELECT * FROM v") == [(2, 3)]
    made = export_database(tmp_path / "db", tmp_path / "export", script_of)
    assert list(made.secrets) == ["there.password"]
    postgres.execute("DELETE FROM t WHERE i = 1; INSERT INTO t VALUES (3, 10)")
    import_database(tmp_path / "export", tmp_path / "imported", {"there.password": PASSWORD})
    with opened(tmp_path / "imported") as connection:
        assert captures.rows(connection, "SELECT * FROM v") == [(2, 12)]


@pytest.mark.objectstores
def test_from_a_store_through_a_store(database_url, tmp_path):
    with opened(database_url) as connection:
        connection.execute(
            "CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a"
        )
        connection.execute("INSERT INTO t VALUES (1); FLUSH")
    export_database(database_url, f"{database_url}-export", script_of)
    for target in (f"{database_url}-imported", tmp_path / "imported"):
        import_database(f"{database_url}-export", target, {})
        with opened(target) as connection:
            connection.execute("INSERT INTO t VALUES (1), (2); FLUSH")
            assert connection.execute("SELECT * FROM v ORDER BY a").fetchall() == [(1, 2), (2, 1)]


def _texts():
    for dialect in ("risingwave", "sqlstream", "timeplus", "lenses", "plain", "dialects"):
        files = sorted((TEXTS / dialect).glob("*.slt"))
        for number, file in enumerate(random.Random(7).sample(files, min(12, len(files)))):
            yield pytest.param(
                file,
                id=f"{dialect}/{file.stem}",
                marks=pytest.mark.thorough if number > 3 and file.stem != "periods" else (),
            )


def _run(script, records, path):
    """Runs a part of a text test in a database. Returns the failure, if there is one."""
    return run_text(replace(script, records=records), path=path, runtime="inprocess").failure


@pytest.mark.parametrize("file", _texts())
def test_text_tests_go_on_after_an_import(file, tmp_path):
    """The second half of a text test runs in a database that was exported and imported, if it runs in one that was
    closed and opened.
    """
    script = parse_file(file)
    first, records = (script.records[:1], script.records[1:]) if script.rich else ([], script.records)
    half = len(records) // 2
    settings = [r for r in records[:half] if r.sql.lstrip().upper().startswith("SET ")]
    begun = _run(script, [*first, *records[:half]], tmp_path / "db")
    shutil.copytree(tmp_path / "db", tmp_path / "control")
    rest = [*first, *settings, *records[half:]]
    if begun is not None or _run(script, rest, tmp_path / "control") is not None:
        pytest.skip("it needs one session")
    made = export_database(tmp_path / "db", tmp_path / "export", script_of)
    import_database(tmp_path / "export", tmp_path / "imported", dict.fromkeys(made.secrets, str(Verifier.of("x"))))
    assert _run(script, rest, tmp_path / "imported") is None


@pytest.mark.parametrize("seed", range(6))
def test_random_databases(seed, tmp_path):
    """Random views and histories: moved at random moments, the content is that of a database that stays."""
    rng = random.Random(seed)
    views = rng.sample(sorted(VIEWS.items()), 4)
    needs = dict(VIEWS) if any("joined" in q for _, q in views) else {}
    with opened(tmp_path / "stays", parallelism=rng.choice([1, 3])) as stays:
        for text in TABLES:
            stays.execute(text)
        if needs:
            stays.execute(f"CREATE MATERIALIZED VIEW joined AS {VIEWS['joined']}")
        for name, query in views:
            if not (needs and name == "joined"):
                stays.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    path, names = tmp_path / "stays", ["items", "orders", "log", *(n for n, _ in views)]
    shutil.copytree(path, tmp_path / "moves0")
    now = 0
    for round_ in range(3):
        texts = []
        for _ in range(rng.randint(1, 6)):
            item, now = rng.randrange(6), now + rng.randrange(20)
            at = f"timestamp '2026-01-01' + interval '{now} seconds'"
            late = f"timestamp '2026-01-01' + interval '{now - rng.randrange(15)} seconds'"
            order = f"{rng.randrange(20)}, {item}, {rng.randrange(90)}.5, {at}, ARRAY['a'], '{{}}'"
            texts += rng.sample(
                [
                    f"INSERT INTO items VALUES ({item}, 'n{rng.randrange(3)}')",
                    f"DELETE FROM items WHERE item = {item}",
                    f"INSERT INTO orders VALUES ({order})",
                    f"DELETE FROM orders WHERE item = {item}",
                    f"INSERT INTO log VALUES ({late}, {item}, {now})",
                    "FLUSH",
                ],
                1,
            )
        for place in (path, tmp_path / f"moves{round_}"):
            with opened(place) as connection:
                for text in texts:
                    connection.execute(text)
        export_database(tmp_path / f"moves{round_}", tmp_path / f"export{round_}", script_of)
        rebuild = rng.random() < 0.3
        try:
            import_database(tmp_path / f"export{round_}", tmp_path / f"moves{round_ + 1}", {}, rebuild=rebuild)
        except Error as refused:
            assert rebuild and "arrived late" in (refused.detail or "")
            import_database(tmp_path / f"export{round_}", tmp_path / f"moves{round_ + 1}", {})
    with opened(path) as stays, opened(tmp_path / "moves3") as moves:
        for each in (stays, moves):
            each.execute("FLUSH")
        assert content(moves, tuple(names)) == content(stays, tuple(names))
