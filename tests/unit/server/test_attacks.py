"""Attacks on the server: what clients try that may not work, before and after they have logged in."""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
import threading
import time

import psycopg
import pytest
from tests.thorough import mostly_slow
from tests.unit.server.test_access import connected, self_signed
from tests.unit.server.test_any_messages import frames, message, started

from watersmeet.server.clients import Limits

SHOP = """
CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1);
CREATE TABLE hidden (word varchar); INSERT INTO hidden VALUES ('geheim');
CREATE USER ann PASSWORD 'x'; CREATE USER rita PASSWORD 'x' IN ROLE reader;
CREATE USER wendy PASSWORD 'x' IN ROLE writer; CREATE USER adam PASSWORD 'x' SUPERUSER; GRANT SELECT ON t TO ann; FLUSH;
"""
USERS = ("ann", "rita", "wendy", "adam")
SLOW = "SELECT count(*) FROM generate_series(1, 100000) AS a(x), generate_series(1, 100000) AS b(y) WHERE x + y < 0"


def as_user(served, name: str, **options) -> psycopg.Connection:
    return psycopg.connect(served.dsn.replace("someone", name), password="x", autocommit=True, **options)


#: One a line; FILE: a file with a secret.
STATEMENTS = """
COPY hidden TO FILE
COPY t FROM FILE
COPY (SELECT 1) TO PROGRAM 'id'
COPY t FROM PROGRAM 'id'
ATTACH FILE AS x
ATTACH FILE (TYPE sqlite)
DETACH x
USE x
INSTALL httpfs
LOAD httpfs
LOAD FILE
PRAGMA version
PRAGMA enable_logging
CALL pragma_version()
CHECKPOINT
VACUUM
EXPORT DATABASE FILE
IMPORT DATABASE FILE
CREATE EXTENSION dblink
SET enable_external_access = true
SET memory_limit = '1TB'
SET lock_configuration = false
SET log_directory = FILE
SET temp_directory = FILE
RESET enable_external_access
CREATE SECRET s WITH (backend = 'env', name = 'HOME')
CREATE SECRET s WITH (backend = 'file', path = FILE)
CREATE SOURCE src (a int) WITH (connector = 'file', path = FILE) FORMAT PLAIN ENCODE CSV
CREATE TABLE src (a int) WITH (connector = 'file', path = FILE) FORMAT PLAIN ENCODE CSV
CREATE SINK s FROM t WITH (connector = 'file', path = FILE, type = 'append-only') FORMAT PLAIN ENCODE JSON
CREATE FUNCTION f() RETURNS int LANGUAGE python AS 'import os'
DO LANGUAGE python 'import os'
EXECUTE IMMEDIATE 'x'
LISTEN x
LOCK TABLE t
CREATE TABLESPACE x LOCATION '/tmp'
ALTER SYSTEM SET x = 1
CREATE DATABASE x
CREATE SERVER s FOREIGN DATA WRAPPER x
CREATE USER MAPPING FOR x
CREATE LANGUAGE plpython3u
SELECT * FROM t; ATTACH 'x'
EXPLAIN ANALYZE SELECT * FROM hidden
CREATE VIEW x AS SELECT * FROM read_csv(FILE)
CREATE MATERIALIZED VIEW x AS SELECT * FROM read_csv(FILE)
INSERT INTO t SELECT a FROM read_csv(FILE)
DELETE FROM t WHERE a IN (SELECT a FROM read_csv(FILE))
UPDATE t SET a = (SELECT a FROM read_csv(FILE))
SELECT (SELECT a FROM read_csv(FILE))
WITH x AS (SELECT * FROM read_csv(FILE)) SELECT * FROM x
COPY (SELECT * FROM read_csv(FILE)) TO STDOUT
DECLARE c CURSOR WITH HOLD FOR SELECT * FROM read_csv(FILE)
PREPARE p AS SELECT * FROM read_csv(FILE)
EXPLAIN SELECT * FROM read_csv(FILE)
VALUES ((SELECT a FROM read_csv(FILE)))
SELECT * FROM t WHERE EXISTS (SELECT 1 FROM read_csv(FILE))
"""


#: Names of DuckDB's own tables where a WITH query of the same name is not in sight.
SHADOWED = """
SELECT * FROM (WITH sqlite_master AS (SELECT 1 AS a) SELECT 1) q, sqlite_master, pg_catalog.pg_class
WITH sqlite_master AS (SELECT * FROM sqlite_master) SELECT * FROM sqlite_master, pg_catalog.pg_class
WITH a AS (SELECT * FROM duckdb_tables), duckdb_tables AS (SELECT relname FROM pg_class) SELECT * FROM a
WITH RECURSIVE a AS (SELECT * FROM sqlite_master), sqlite_master AS (SELECT relname FROM pg_class) SELECT * FROM a
SELECT (WITH duckdb_tables AS (SELECT 1) SELECT count(*) FROM duckdb_tables), t.* FROM duckdb_tables t, pg_class
SELECT 1 FROM pg_class WHERE EXISTS (WITH sqlite_master AS (SELECT 1) SELECT * FROM sqlite_master)
    UNION ALL SELECT 1 FROM sqlite_master
WITH a AS (SELECT relname FROM pg_class) SELECT * FROM watersmeet_with_0
"""


def test_names_of_with_queries_reach_nothing_beyond_them(serving):
    with as_user(serving(SHOP), "adam") as client:
        for statement in SHADOWED.strip().replace("\n    ", " ").splitlines():
            with pytest.raises(psycopg.errors.UndefinedTable):
                client.execute(statement)
        for statement, found in (
            ("WITH sqlite_master AS (SELECT 1 AS a) SELECT sqlite_master.a FROM sqlite_master, pg_class LIMIT 1", 1),
            ("WITH pg_class (a) AS (SELECT 2) SELECT m.a FROM pg_class m, pg_namespace LIMIT 1", 2),
            (
                "WITH RECURSIVE a AS (SELECT 1 n UNION SELECT n + 1 FROM a WHERE n < 3) SELECT max(n) FROM a, pg_am",
                3,
            ),
            (
                "WITH a AS (SELECT 4 n), b AS (WITH a AS (SELECT 5 n) SELECT n FROM a) SELECT b.n FROM a, b, pg_am",
                5,
            ),
        ):
            assert client.execute(statement).fetchone() == (found,)


def outside(file: str) -> list[str]:
    """Statements that reach out of the database: files, network, environment, extensions, other databases."""
    readers = """read_csv read_csv_auto read_json read_json_auto read_parquet parquet_scan read_text read_blob sniff_csv
        parquet_metadata parquet_schema read_ndjson glob sqlite_scan iceberg_scan delta_scan read_xlsx st_read
        pg_read_file pg_read_binary_file pg_ls_dir lo_import"""
    places = (file, "https://example.invalid/a.csv", "s3://bucket/a.parquet", "/etc/passwd", "/proc/self/environ")
    calls = [f"{reader}('{file}')" for reader in readers.split()] + [f"read_csv('{place}')" for place in places]
    functions = f"""getenv('HOME') | current_setting('data_directory') | getvariable('user') | read_text('{file}')
        | lo_get(1) | pg_read_file('{file}') | query('SELECT * FROM read_csv(''{file}'')') | duckdb_secrets()
        | pg_ls_logdir() | dblink('x', 'y') | load_aws_credentials('{file}') | add_parquet_key('a', 'b')
        | file_exists('{file}') | pragma_version() | write_log('x') | which_secret('{file}', 's3')
        | signal_(1, true, 'x')"""
    tables = f"""duckdb_settings() | duckdb_secrets() | duckdb_tables() | duckdb_logs() | duckdb_extensions() | '{file}'
        | duckdb_memory() | "{file}" | pragma_storage_info('t') | query_table('hidden') | sqlite_master | main.hidden
        | query('SELECT * FROM read_csv(''{file}'')') | _watersmeet.t2 | pg_catalog.pg_authid | pg_catalog.pg_shadow
        | pg_catalog_.roles_ | temp.pg_settings | system.settings | test_all_types() | repeat_row(1)
        | seq_scan('hidden') | checkpoint() | force_checkpoint()"""
    scanned = [*calls, *(t.strip() for t in tables.split("|"))]
    called = [*calls, *(f.strip() for f in functions.split("|"))]
    found = [f"SELECT * FROM {item}" for item in scanned]
    found += [f"SELECT * FROM pg_catalog.pg_class, {item}" for item in scanned]
    found += [f"SELECT {call}" for call in called]
    found += [f"SELECT {call}, version()" for call in called]
    return [*found, *(s.strip().replace("FILE", f"'{file}'") for s in STATEMENTS.strip().splitlines())]


@pytest.mark.parametrize("user", mostly_slow(("ann", "adam", "rita", "wendy"), 2))
def test_statements_reach_nothing_outside_of_the_database(serving, tmp_path, user):
    file = tmp_path / "a.csv"
    file.write_text("a\ngeheim\n")
    before = sorted(tmp_path.iterdir())
    served = serving(SHOP)
    allowed = []
    with as_user(served, user) as client:
        for statement in outside(str(file)):
            try:
                copies = statement.startswith("COPY (") and "STDOUT" in statement
                cursor = client.cursor()
                if copies:
                    with cursor.copy(statement) as copy:
                        found = repr(list(copy))
                else:
                    cursor.execute(statement)
                    found = repr(cursor.fetchall()) if cursor.description else ""
            except psycopg.Error as err:
                assert err.sqlstate[:2] in ("42", "0A", "22", "25"), (statement, err)
                assert "geheim" not in str(err), statement
                continue
            assert "geheim" not in found, statement
            assert "/root" not in found, statement
            allowed.append(statement)
        assert client.execute("SELECT * FROM t").fetchall() == [(1,)]
    assert sorted(tmp_path.iterdir()) == before
    assert file.read_text() == "a\ngeheim\n"
    reading = [s for s in allowed if str(file) in s]
    assert not reading


def test_the_words_of_a_secret_come_back_in_no_message(serving, caplog):
    served = serving(SHOP)
    word = "Tr0ub4dor"
    statements = (
        f"CREATE USER ann PASSWORD '{word}'",
        f"CREATE USER x PASSWORD '{word}' NONSENSE",
        f"ALTER USER nobody PASSWORD '{word}'",
        f"ALTER USER nobody ENCRYPTED PASSWORD '{word}'",
        f"CREATE USER x PASSWORD '{word}' VALID UNTIL 'x'",
        f"CREATE SECRET s WITH (backend = 'nothing') AS '{word}'",
        f"CREATE SOURCE k (a int) WITH (connector = 'kafka', properties.sasl.password = '{word}', nonsense = 'x')",
        f"CREATE SINK k FROM t WITH (connector = 'jdbc', jdbc.url = 'jdbc:postgresql://u:{word}@h:1/d?x')",
        f"SELECT * FROM nothing WHERE password = '{word}'",
    )
    with as_user(served, "adam") as client:
        for statement in statements:
            with pytest.raises(psycopg.Error) as found:
                client.execute(statement)
            diagnosis = found.value.diag
            said = [
                getattr(diagnosis, part)
                for part in ("message_primary", "message_detail", "message_hint", "context", "internal_query")
            ]
            assert not any(word in text for text in said if text), statement
        client.execute(f"CREATE USER x PASSWORD '{word}'")
        client.execute(f"CREATE SECRET s WITH (backend = 'meta') AS '{word}'")
        for table in ("pg_roles", "pg_user", "pg_settings", "pg_stat_activity", "pg_db_role_setting"):
            assert word not in repr(client.execute(f"SELECT * FROM {table}").fetchall()), table
        for what in ("ROLES", "SECRETS", "ALL", "PARAMETERS", "GRANTS", "ERRORS"):
            assert word not in repr(client.execute(f"SHOW {what}").fetchall()), what
    assert word not in caplog.text


def test_no_statement_gives_rights(serving):
    served = serving(SHOP)
    with as_user(served, "ann") as client:
        for statement in (
            "SET ROLE admin", "SET ROLE adam", "SET SESSION AUTHORIZATION adam", "SET is_superuser = on",
            "GRANT admin TO ann", "ALTER USER ann SUPERUSER", "ALTER USER ann PASSWORD 'y' IN ROLE admin",
            "CREATE USER z SUPERUSER", "GRANT SELECT ON hidden TO ann", "GRANT SELECT ON t TO PUBLIC",
            "SET session_authorization = 'adam'",
            "ALTER ROLE admin RENAME TO x", "REVOKE reader FROM rita", "DROP USER adam", "SET max_result_size TO 'x'",
            "SELECT set_config('role', 'admin', false)",
            "CREATE VIEW v AS SELECT * FROM hidden", "SELECT * FROM hidden", "TABLE hidden", "DESCRIBE hidden",
            "SHOW COLUMNS FROM hidden", "SELECT 'hidden'::regclass::oid::int / 0", "INSERT INTO t VALUES (2)",
            "SELECT pg_get_viewdef('hidden'::regclass)", "SELECT * FROM watersmeet.secrets",
        ):  # fmt: skip
            try:
                found = client.execute(statement)
                assert "geheim" not in repr(found.fetchall() if found.description else ""), statement
            except psycopg.Error as err:
                assert "geheim" not in str(err)
                assert "word" not in str(err).lower() or "password" in str(err).lower()
            assert client.execute("SELECT current_user, session_user").fetchone() == ("ann", "ann"), statement
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT * FROM hidden")
        assert client.info.parameter_status("is_superuser") == "off"
    for option in ("role=admin", "role=adam", "session_authorization=adam", "is_superuser=on"):
        with pytest.raises(psycopg.OperationalError):
            as_user(served, "ann", options=f"-c {option}")


def test_names_are_no_statements(serving):
    """Of users, databases, roles and relations, with signs that mean something in SQL."""
    served = serving(SHOP)
    odd = "a'; DROP TABLE t; --\"x"
    quoted = odd.replace('"', '""')
    with as_user(served, "adam") as admin:
        admin.execute(f"CREATE USER \"{quoted}\" PASSWORD 'x' IN ROLE reader")
        admin.execute(f'CREATE TABLE "{quoted}" (a int)')
        admin.execute(f'GRANT SELECT ON "{quoted}" TO "{quoted}"')
        admin.execute(f'CREATE SCHEMA "{quoted}"')
    port = served.server.port
    with psycopg.connect(
        host="127.0.0.1", port=port, user=odd, dbname=odd, password="x", application_name=odd, autocommit=True
    ) as client:
        assert client.execute("SELECT current_user, current_database()").fetchone() == (odd, odd)
        client.execute(f'SET search_path = "{quoted}", public')
        found = client.execute(
            "SELECT has_table_privilege(oid, 'SELECT'), relname FROM pg_class WHERE relname = %s", (odd,)
        )
        assert found.fetchall() == [(True, odd)]
        assert client.execute("SELECT current_schema()").fetchone() == (odd,)
        assert client.execute("SELECT * FROM t").fetchall() == [(1,)]


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def startup(user: str = "ann", **options: str) -> bytes:
    pairs = b"".join(f"{n}\0{v}\0".encode() for n, v in {"user": user, **options}.items())
    body = struct.pack(">I", 3 << 16) + pairs + b"\0"
    return struct.pack(">i", len(body) + 4) + body


def said(client: socket.socket) -> bytes:
    """All until the server closes the connection."""
    data = b""
    while True:
        try:
            piece = client.recv(1 << 16)
        except ConnectionError:
            return data
        if not piece:
            return data
        data += piece


def test_floods_of_connections_that_say_nothing_keep_nobody_out(serving):
    served = serving(SHOP, limits=Limits(starting=10, connections=5))
    flood = [raw(served.server.port) for _ in range(40)]
    try:
        assert connected(lambda: as_user(served, "ann"))
        flood += [raw(served.server.port) for _ in range(40)]
        assert connected(lambda: as_user(served, "rita"))
        first = said(flood[0])
        assert b"53300" in first
    finally:
        for client in flood:
            client.close()


def test_clients_that_speak_slowly_are_sent_away(serving, tmp_path):
    certificate, key = self_signed(tmp_path)
    served = serving(SHOP, limits=Limits(authentication_s=0.5), certificate=certificate, key=key)
    dripping, shaking, halfway = (raw(served.server.port) for _ in range(3))
    with dripping, shaking, halfway:
        shaking.sendall(struct.pack(">iI", 8, 80877103))
        assert shaking.recv(1) == b"S"  # and it never begins with TLS
        halfway.sendall(startup())
        began = time.monotonic()
        for byte in startup() * 30:
            try:
                dripping.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.05)
            if time.monotonic() - began > 20:
                raise AssertionError("it may go on")
        assert b"authentication timed out" in said(halfway)
        assert said(shaking) == b"" or b"authentication timed out" in said(shaking)


def test_lengths_that_are_refused_before_one_has_logged_in(serving):
    port = serving(SHOP).server.port
    for length in (3, 10_005, 1 << 20, (1 << 31) - 1, -1, 0):
        with raw(port) as client:
            client.sendall(struct.pack(">i", length) + bytes(100))
            answer = said(client)
            assert b"08P01" in answer or (not answer and length == 0)
        with raw(port) as client:
            client.sendall(startup())
            client.recv(100)
            client.sendall(b"p" + struct.pack(">i", length) + bytes(100))
            assert b"08P01" in said(client)


@pytest.mark.slow
def test_messages_of_any_size_are_answered(serving):
    served = serving(SHOP, limits=Limits(message_bytes=1 << 22))
    for text, wanted in (
        ("SELECT " + "(" * 20_000 + "1" + ")" * 20_000, b"0A000"),
        ("SELECT " + "-" * 20_000 + "1", b"C"),
        ("SELECT " + "1+" * 20_000 + "1", b"0A000"),
        ("SELECT " + "a" * 200_000, b"42703"),
        ("SELECT '" + "x" * 1_000_000 + "'", b"T"),
        (";" * 50_000, b"I"),
        ("/**/" * 20_000 + "x", b"42601"),
        ("SELECT 1;" * 100, b"T"),
    ):
        with started_as(served, "ann") as client:
            client.sendall(message(b"Q", text.encode() + b"\0") + message(b"X", b""))
            answer = said(client)
        assert wanted in answer, (text[:30], answer[:300])
        assert b"XX000" not in answer
    with started_as(served, "ann") as client:
        client.sendall(b"Q" + struct.pack(">i", 1 << 23))
        assert b"08P01" in said(client)
    with started_as(served, "ann") as client:  # more parameters than there may be
        client.sendall(
            message(b"P", b"\0SELECT 1\0" + struct.pack(">H", 65535) + bytes(4 * 65535)) + message(b"S", b"")
        )
        client.sendall(message(b"B", b"\0\0" + struct.pack(">hHh", 0, 65535, 0)) + message(b"X", b""))
        assert b"E" in said(client)
    with as_user(served, "ann") as client:
        assert client.execute("SELECT * FROM t").fetchall() == [(1,)]


class Raw:
    """A client that has logged in by psycopg, and goes on with its socket alone."""

    def __init__(self, client: psycopg.Connection) -> None:
        self._client = client

    def __enter__(self) -> socket.socket:
        self._socket = socket.socket(fileno=os.dup(self._client.fileno()))
        self._socket.settimeout(60)
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._client.close()


def started_as(served, user: str) -> Raw:
    return Raw(as_user(served, user))


@pytest.mark.slow
def test_who_guesses_the_key_cancels_nothing(serving):
    served = serving(SHOP)
    with as_user(served, "ann") as client:
        client.execute("SET statement_timeout = '2s'")
        process = client.info.backend_pid
        failures = []

        def run() -> None:
            try:
                client.execute(SLOW)
            except psycopg.errors.QueryCanceled as err:
                failures.append(str(err))

        thread = threading.Thread(target=run)
        thread.start()
        rng = random.Random(1)
        for number in range(150):
            secret = rng.choice((0, -1, number, rng.randint(-(1 << 31), (1 << 31) - 1)))
            with raw(served.server.port) as guess:
                guess.sendall(struct.pack(">iIii", 16, 80877102, process, secret))
        for length in (12, 17, 20):
            with raw(served.server.port) as guess:
                guess.sendall(struct.pack(">iIi", length, 80877102, process) + bytes(length - 12))
        thread.join(60)
    assert len(failures) == 1
    assert "statement timeout" in failures[0]


def test_nothing_is_said_without_encryption_where_it_is_required(serving, tmp_path):
    """Also to a client that was told by somebody between that there is none."""
    certificate, key = self_signed(tmp_path)
    served = serving(SHOP, certificate=certificate, key=key, limits=Limits(requires_tls=True))
    with raw(served.server.port) as client:
        client.sendall(startup())
        answer = said(client)
        assert answer[:1] == b"E"
        assert b"must be encrypted" in answer
        assert b"SCRAM" not in answer
    with raw(served.server.port) as client:  # what comes behind the request is taken for nothing
        client.sendall(struct.pack(">iI", 8, 80877103) + startup())
        answer = said(client)
        assert answer[:1] == b"S"
        assert b"R" not in answer[1:2]
        assert b"SCRAM" not in answer
    with raw(served.server.port) as client:
        client.sendall(struct.pack(">iI", 8, 80877103))
        assert client.recv(1) == b"S"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, OSError, ValueError)):
            context.wrap_socket(client).recv(1)


def sasl(client: socket.socket, first: bytes, mechanism: bytes = b"SCRAM-SHA-256") -> bytes:
    """What the server says to the first message of SCRAM."""
    client.sendall(startup())
    client.recv(1000)
    client.sendall(message(b"p", mechanism + b"\0" + struct.pack(">i", len(first)) + first))
    return client.recv(4000)


def test_messages_of_scram_that_are_none(serving):
    port = serving(SHOP).server.port
    for first, mechanism in (
        (b"n,,n=,r=abc", b"SCRAM-SHA-1"),
        (b"n,,n=,r=abc", b"PLAIN"),
        (b"p=tls-server-end-point,,n=,r=abc", b"SCRAM-SHA-256"),
        (b"n,,n=", b"SCRAM-SHA-256"),
        (b"", b"SCRAM-SHA-256"),
        (b"\xff\xfe", b"SCRAM-SHA-256"),
        (b"n,b=x,n=,r=abc", b"SCRAM-SHA-256"),
    ):
        with raw(port) as client:
            assert b"08P01" in sasl(client, first, mechanism)
    for final in (
        "c=biws,r={n},p=", "c=biws,r={n},p=AAAA", "c=biws,r=abc,p=AAAA", "c=eSws,r={n},p=AAAA", "r={n}", "",
        "c=biws,r={n}", "c=biws,r={n},p=" + "A" * 43 + "=",
    ):  # fmt: skip
        with raw(port) as client:
            answer = sasl(client, b"n,,n=,r=abc")
            nonce = answer.split(b"r=")[1].split(b",")[0].decode()
            client.sendall(message(b"p", final.replace("{n}", nonce).encode()))
            answer = said(client)
        assert b"28P01" in answer or b"08P01" in answer
        assert b"R\0\0\0\x08\0\0\0\0" not in answer


def test_an_unknown_user_looks_like_a_wrong_password(serving):
    """The same messages, a salt that stays the same, and the same number of rounds."""
    port = serving(SHOP).server.port
    seen: dict[str, list] = {"ann": [], "nobody": []}
    for user in (*seen, *seen):
        with raw(port) as client:
            client.sendall(startup(user))
            offered = client.recv(1000)
            client.sendall(message(b"p", b"SCRAM-SHA-256\0" + struct.pack(">i", 11) + b"n,,n=,r=abc"))
            parts = dict(p.split("=", 1) for p in client.recv(4000)[9:].decode().split(","))
            client.sendall(message(b"p", f"c=biws,r={parts['r']},p={'A' * 43}=".encode()))
            refused = said(client).replace(user.encode(), b"USER")
            seen[user].append((offered, len(parts["r"]), len(parts["s"]), parts["i"], parts["s"], refused[5:]))
    for answers in seen.values():
        assert answers[0] == answers[1]
    known, unknown = (list(answers[0]) for answers in seen.values())
    assert known.pop(4) != unknown.pop(4)
    assert known == unknown


def test_a_proof_can_t_be_sent_again(serving):
    port = serving(SHOP).server.port
    sent: list[bytes] = []
    with psycopg.connect(host="127.0.0.1", port=port, user="ann", password="x"):
        pass
    with raw(port) as client:
        answer = sasl(client, b"n,,n=,r=abc")
        nonce = answer.split(b"r=")[1].split(b",")[0]
        sent.append(b"c=biws,r=" + nonce + b",p=" + b"A" * 43 + b"=")
        client.sendall(message(b"p", sent[0]))
        said(client)
    with raw(port) as client:
        sasl(client, b"n,,n=,r=abc")
        client.sendall(message(b"p", sent[0]))
        assert b"08P01" in said(client)  # the server's part of the nonce is another one


@pytest.mark.parametrize("seed", mostly_slow(range(60), 1, 1))
def test_nobody_gets_in_by_any_messages(serving, seed):
    """Before a client has logged in, nothing is answered but by errors."""
    rng = random.Random(seed)
    served = serving(SHOP)
    for _ in range(25):
        with raw(served.server.port) as client:
            parts = [startup(rng.choice(USERS), **{rng.choice(("database", "options", "x")): "y"})]
            for _ in range(rng.randint(1, 4)):
                body = rng.choice(
                    (
                        b"SCRAM-SHA-256\0" + struct.pack(">i", 11) + b"n,,n=,r=abc",
                        b"SELECT * FROM hidden\0",
                        rng.randbytes(rng.randint(0, 40)),
                        b"c=biws,r=abc,p=AAAA",
                    )
                )
                parts.append(message(rng.choice((b"p", b"Q", b"P", b"X", b"S", b"d", b"F")), body))
            client.sendall(b"".join(parts))
            client.shutdown(socket.SHUT_WR)
            answer = said(client)
            assert b"geheim" not in answer
            assert not {b"Z", b"K", b"D", b"T"} & set(frames(answer)), answer
    assert connected(lambda: as_user(served, "ann"))


def test_the_catalog_s_answers_can_be_cancelled_and_keep_nobody_waiting(serving):
    served = serving(SHOP)
    tables = ", ".join(f"pg_catalog.pg_type t{i}" for i in range(7))
    numbers = " + ".join(f"t{i}.oid" for i in range(7))
    with as_user(served, "ann") as one, as_user(served, "rita") as two:
        failures = []

        def run() -> None:
            try:
                one.execute(f"SELECT count(*) FROM {tables} WHERE {numbers} < 0")
            except psycopg.errors.QueryCanceled as err:
                failures.append(err)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.3)
        found = two.execute("SELECT relname FROM pg_catalog.pg_class WHERE relname = 'hidden'").fetchall()
        assert found == [("hidden",)]
        assert thread.is_alive()
        until = time.monotonic() + 60
        while thread.is_alive() and time.monotonic() < until:
            one.cancel_safe()
            thread.join(0.2)
        assert len(failures) == 1


def test_trusted_clients_are_those_of_this_machine_while_nobody_has_a_password(serving):
    served = serving("CREATE TABLE t (a int); CREATE ROLE r")
    with served.connect(autocommit=True) as client:
        with client.transaction():
            client.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
            client.execute("CREATE USER bob PASSWORD 'x'")
        with pytest.raises(psycopg.errors.AdminShutdown, match="has users now"):
            client.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="password"):
            served.connect()
    with started(served.server.port) as client:
        assert client.recv(1000)[:1] == b"R"
        client.sendall(message(b"Q", b"SELECT 1\0"))
        assert b"08P01" in said(client)
