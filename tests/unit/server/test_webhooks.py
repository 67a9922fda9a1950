"""Webhook tables: which requests become rows, how others are answered, and what a killed server keeps."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from tests.unit.server.test_access import USERS
from tests.waiting import until

import watersmeet
from watersmeet.errors import Error
from watersmeet.server.service import BackgroundServer, Endpoint

KEY = "TEST_WEBHOOK"
SIGNED = """VALIDATE SECRET s AS secure_compare(
    headers->>'x-hub-signature-256', 'sha256=' || encode(hmac(s, data, 'sha256'), 'hex'))"""
#: By table, its condition, and the headers that meet it: those that RisingWave's documentation has for each service.
SERVICES = {
    "github": (SIGNED, lambda body: {"X-Hub-Signature-256": "sha256=" + signature(body, "sha256")}),
    "github_sha1": (
        f"""VALIDATE AS secure_compare(
            headers->>'x-hub-signature', 'sha1=' || encode(hmac('{KEY}', data, 'sha1'), 'hex'))""",
        lambda body: {"x-hub-signature": "sha1=" + signature(body, "sha1")},
    ),
    "segment": (
        "VALIDATE SECRET s AS secure_compare(headers->>'x-signature', encode(hmac(s, data, 'sha1'), 'hex'))",
        lambda body: {"x-signature": signature(body, "sha1")},
    ),
    "rudderstack": (
        "VALIDATE SECRET s AS secure_compare(headers->>'authorization', s)",
        lambda _: {"Authorization": KEY},
    ),
    "hubspot": (
        """VALIDATE SECRET s AS secure_compare(headers->>'x-hubspot-signature', encode(sha256(convert_to(
            (s || 'POST' || 'http://h/webhook/dev/public/hubspot' || convert_from(data, 'utf8')), 'UTF8')), 'hex'))""",
        lambda body: {
            "X-HubSpot-Signature": hashlib.sha256(
                f"{KEY}POSThttp://h/webhook/dev/public/hubspot".encode() + body
            ).hexdigest()
        },
    ),
}


def signature(body: bytes, kind: str) -> str:
    return hmac.new(KEY.encode(), body, kind).hexdigest()


def post(url: str, table: str, body: bytes, headers=None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{url}/webhook/dev/public/{table}", body, headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as found:
        return found.code, found.read()


@pytest.fixture
def serve(serving):
    def make(*statements: str):
        served = serving(http_port=0)
        served.python.execute(f"CREATE SECRET s WITH (backend = 'meta') AS '{KEY}'")
        for statement in statements:
            served.python.execute(statement)
        return served

    return make


def rows(served, query):
    return sorted(served.python.execute(query).fetchall(), key=repr)


def test_requests_of_services_are_rows_if_they_are_signed(serve):
    tables = [f"CREATE TABLE {n} (data JSONB) WITH (connector = 'webhook') {v}" for n, (v, _) in SERVICES.items()]
    served = serve(*tables)
    for name, (_, sign) in SERVICES.items():
        for body in (b'{"b": [1, null], "a": "\xc3\xa9"}', b"3", b'[{"a": 1}]'):
            assert post(served.url, name, body, sign(body)) == (200, b"")
        for wrong in (
            {},
            {k: v + "0" for k, v in sign(body).items()},
            sign(body + b" ") if name != "rudderstack" else {},
        ):
            assert post(served.url, name, body, wrong)[0] == 401
        assert rows(served, f"SELECT data::varchar FROM {name}") == [
            ("3",), ('[{"a": 1}]',), ('{"a": "é", "b": [1, null]}',),
        ]  # fmt: skip
        assert post(served.url, name, body, {**sign(body), "Host": "hooks.example", "Origin": "http://x"})[0] == 200


def test_bodies_that_are_not_rows(serve):
    served = serve("CREATE TABLE t (data jsonb) WITH (connector = 'webhook')")
    for body in (b"", b"{", b"{'a': 1}", b'"\xff"'):
        status, answer = post(served.url, "t", body)
        assert (status, json.loads(answer)["error"]["condition"]) == (422, "INVALID_VALUE")
    for name in ("nothing", "T", "t2"):
        assert post(served.url, name, b"1")[0] == 404
    served.python.execute("CREATE TABLE t2 (data jsonb)")
    assert post(served.url, "t2", b"1")[0] == 404, "other tables are not there"
    assert post(served.url, "t", b'"%s"' % (b"x" * (2 << 20)))[0] == 413
    assert post(served.url, "t", b'"%s"' % (b"x" * ((2 << 20) - 2)))[0] == 200
    assert post(served.url, "t", b'{"a": 1}', {"Content-Encoding": "gzip"})[0] == 400, "it is not compressed"
    assert served.http("/webhook/dev/public/t").status == 405
    assert post(served.url, "t", b"1", {"Origin": "http://evil.example"})[0] == 403
    assert post(served.url, "t", b"1", {"Host": "evil.example"})[0] == 403
    assert served.python.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_columns_that_are_added_renamed_and_dropped(serve):
    served = serve(
        "CREATE TABLE t (id int, name varchar) INCLUDE header 'x-event' AS event WITH (connector = 'webhook')"
    )
    run = served.python.execute
    run("CREATE MATERIALIZED VIEW v AS SELECT id, name, event FROM t")
    assert post(served.url, "t", b'{"id": 1, "name": "a", "size": 5}', {"X-Event": "push"})[0] == 200
    for change in ("ADD COLUMN size int", "RENAME COLUMN name TO title", "RENAME COLUMN event TO kind"):
        run(f"ALTER TABLE t {change}")
    body = b'{"id": 2, "name": "lost", "title": "b", "size": 6}'
    assert post(served.url, "t", body, {"X-Event": "pull"})[0] == 200
    run("FLUSH")
    assert rows(served, "SELECT * FROM t") == [(1, "a", "push", None), (2, "b", "pull", 6)]
    assert rows(served, "SELECT * FROM v") == [(1, "a", "push"), (2, "b", "pull")]
    run("ALTER TABLE t DROP COLUMN size")
    assert post(served.url, "t", body)[0] == 200
    run("FLUSH")
    assert rows(served, "SELECT * FROM t") == [(1, "a", "push"), (2, "b", "pull"), (2, "b", None)]
    run("CREATE TABLE whole (data jsonb) WITH (connector = 'webhook')")
    run("ALTER TABLE whole RENAME COLUMN data TO body")
    assert post(served.url, "whole", b"[1]")[0] == 200
    run("FLUSH")
    assert rows(served, "SELECT body::varchar FROM whole") == [("[1]",)]
    run("CREATE TABLE two (data jsonb, id int) WITH (connector = 'webhook')")
    for refused in ("whole ADD COLUMN b int", "two DROP COLUMN id", "t ADD COLUMN b int DEFAULT 1"):
        with pytest.raises(watersmeet.Error) as found:
            run(f"ALTER TABLE {refused}")
        assert found.value.condition == "FEATURE_NOT_SUPPORTED"


def test_columns_keep_their_declared_types(serve):
    served = serve("CREATE TABLE t (id uuid, name varchar(3), code char(2)) WITH (connector = 'webhook')")
    known = "0f8fad5b-d9cb-469f-a165-70867728950e"
    assert post(served.url, "t", f'{{"id": "{known}", "name": "abc   ", "code": "x "}}'.encode())[0] == 200
    status, answer = post(served.url, "t", b'{"name": "abcd"}')
    assert (status, json.loads(answer)["error"]["condition"]) == (422, "VALUE_TOO_LONG")
    assert rows(served, "SELECT id::varchar, name FROM t") == [(known, "abc")]
    with pytest.raises(watersmeet.Error) as refused:
        served.python.execute("CREATE TABLE n (id serial, a int) WITH (connector = 'webhook')")
    assert refused.value.condition == "FEATURE_NOT_SUPPORTED"


def test_fields_headers_lines_and_generated_columns(serve):
    served = serve("""CREATE TABLE orders (id int PRIMARY KEY, price numeric, at timestamptz, twice int AS (id * 2))
        INCLUDE header 'X-Event' AS event WITH (connector = 'webhook', is_batched = true)
        VALIDATE SECRET s AS secure_compare(headers->>'x-signature', encode(hmac(s, payload, 'sha256'), 'hex'))""")

    def send(body: bytes, **more: str) -> int:
        headers = {"X-Signature": signature(body, "sha256"), **{k.replace("_", "-"): v for k, v in more.items()}}
        return post(served.url, "orders", body, headers)[0]

    assert send(b'{"id": 1, "price": "19.99", "more": 1}\n\n{"ID": 2, "price": "?"}\r\n', x_event="new") == 200
    assert send(b'{"id": 1, "price": 2.5}') == 200, "a key is replaced"
    assert rows(served, "SELECT id, price::varchar, twice, event FROM orders") == [
        (1, "2.5", 2, None),
        (2, None, 4, "new"),
    ]
    assert send(b"") == 200
    # All lines of a request are inserted, or none.
    for body in (b'{"id": 3}\n{"price": 1}', b'{"id": 3}\n{', b'{"id": "x"}', b"3"):
        assert send(body) == 422
    mode = "x_rw_webhook_json_timestamptz_handling_mode"
    assert send(b'{"id": 4, "at": 1712800800123}', **{mode: "milli"}) == 200
    assert rows(served, "SELECT at::varchar FROM orders WHERE id = 4") == [("2024-04-11 02:00:00.123+00",)]
    for header in ({mode: "nano"}, {"x_rw_webhook_encode": "csv"}, {"x_rw_webhook_json_time_handling_mode": "milli"}):
        assert send(b'{"id": 5}', **header) == 400
    assert send(b'{"id": 5}', x_rw_webhook_format="plain") == 200
    assert rows(served, "SELECT id FROM orders") == [(1,), (2,), (4,), (5,)]


def test_without_a_condition_the_users_of_the_server_write(serve):
    served = serve("CREATE TABLE t (data jsonb) WITH (connector = 'webhook')", "CREATE TABLE other (data jsonb)")
    assert post(served.url, "t", b"1")[0] == 200
    served.python.execute(USERS)

    def by(user: str, table: str = "t") -> int:
        return served.http(f"/webhook/dev/public/{table}", body=1, user=user).status

    assert post(served.url, "t", b"1")[0] == post(served.url, "nothing", b"1")[0] == 401
    assert served.http("/webhook/dev/public/t", body=1).headers["WWW-Authenticate"]
    assert (by("ann:sécret"), by("ann:other"), by("bob:other"), by("bob:other", "nothing")) == (200, 401, 404, 404)
    served.python.execute("GRANT SELECT ON t TO bob")
    assert by("bob:other") == 403
    served.python.execute("GRANT INSERT ON t TO bob")
    assert by("bob:other") == 200
    # A condition gives the right to insert, and no other.
    served.python.execute(f"CREATE TABLE signed (data jsonb) WITH (connector = 'webhook') {SIGNED}")
    assert post(served.url, "signed", b"1")[0] == 401
    assert post(served.url, "signed", b"1", SERVICES["github"][1](b"1"))[0] == 200
    assert served.http("/api/topology").status == 401


def test_it_is_a_table_in_every_other_way(serve, tmp_path):
    served = serve(
        f"CREATE TABLE t (data jsonb) WITH (connector = 'webhook') {SIGNED}",
        f"CREATE TABLE u (data jsonb) WITH (connector = 'webhook') {SERVICES['github_sha1'][0]}",
        "CREATE MATERIALIZED VIEW v AS SELECT data->>'a' AS a FROM t",
    )
    run = served.python.execute
    assert SIGNED in run("SHOW CREATE TABLE t").fetchone()[1]
    shown = run("SHOW CREATE TABLE u").fetchone()[1]
    assert "->>'x-hub-signature'" in shown and "[HIDDEN]" in shown and KEY not in shown
    compared = "VALIDATE SECRET s AS secure_compare(headers->>'x', '{}')"
    run(f"CREATE TABLE x (data jsonb) WITH (connector = 'webhook') {compared.format(KEY)}")
    assert compared.format("[HIDDEN]") in run("SHOW CREATE TABLE x").fetchone()[1]
    body = b'{"a": 1}'
    assert post(served.url, "t", body, SERVICES["github"][1](body))[0] == 200
    run("INSERT INTO t VALUES ('{\"a\": 2}'); FLUSH")
    assert rows(served, "SELECT a FROM v") == [("1",), ("2",)]
    with served.connect() as client:
        assert client.execute("SELECT relkind FROM pg_class WHERE relname = 't'").fetchall() == [("r",)]
    for sql, condition in (
        ("DROP SECRET s", "DEPENDENT_OBJECTS"),
        ("ALTER TABLE t ADD COLUMN n int", "FEATURE_NOT_SUPPORTED"),
        ("CREATE SOURCE w (data jsonb) WITH (connector = 'webhook')", "FEATURE_NOT_SUPPORTED"),
        ("CREATE TABLE w (data jsonb) WITH (connector = 'webhook', x = 1)", "CONNECTOR_OPTION"),
        ("CREATE TABLE w (data jsonb) WITH (connector = 'webhook') FORMAT PLAIN ENCODE CSV", "FEATURE_NOT_SUPPORTED"),
        ("CREATE TABLE w (data jsonb) WITH (connector = 'webhook') VALIDATE AS true", "FEATURE_NOT_SUPPORTED"),
        ("CREATE TABLE w (data jsonb) VALIDATE AS secure_compare('a', 'b')", "SYNTAX_ERROR"),
        ("CREATE TABLE w (d jsonb) INCLUDE offset WITH (connector = 'webhook')", "SYNTAX_ERROR"),
        (f"CREATE TABLE w (d jsonb) WITH (connector = 'webhook') {SIGNED}", "UNDEFINED_COLUMN"),
        (SIGNED.join(("CREATE TABLE w (s jsonb) WITH (connector = 'webhook') ", "")), "DUPLICATE_COLUMN"),
    ):
        with pytest.raises(Error) as refused:
            run(sql)
        assert refused.value.condition == condition, sql
    with pytest.raises(Error) as refused:
        run(f"CREATE TABLE w (d jsonb) WITH (connector = 'webhook') {SERVICES['github_sha1'][0]}")
    assert KEY not in str(refused.value)
    run("DROP MATERIALIZED VIEW v; DROP TABLE t; DROP TABLE u; DROP TABLE x; DROP SECRET s")
    assert post(served.url, "t", body, SERVICES["github"][1](body))[0] == 404


def test_a_server_that_can_not_write_asks_to_try_again(serve, tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as made:
        made.execute("CREATE TABLE t (data jsonb) WITH (connector = 'webhook')")
        with (
            watersmeet.connect(tmp_path / "db", read_only=True) as reader,
            BackgroundServer(reader.opened, Endpoint(port=0, http_port=0)) as server,
        ):
            assert post(f"http://127.0.0.1:{server.http_port}", "t", b"1")[0] == 503


@pytest.mark.slow
def test_a_killed_server_keeps_what_it_has_answered(tmp_path):
    command = [sys.executable, "-m", "watersmeet", "serve", "--port", "0", "--http-port", "0", "--runtime", "inprocess"]
    command += ["--path", str(tmp_path / "db"), str(tmp_path / "a.sql")]
    (tmp_path / "a.sql").write_text("CREATE TABLE t (data jsonb) WITH (connector = 'webhook')")
    answered: list[int] = []
    number = iter(range(10**6))

    def send(url: str) -> None:
        while True:
            n = next(number)
            try:
                if post(url, "t", str(n).encode())[0] == 200:
                    answered.append(n)
            except OSError:
                return

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = next(u[0] for line in process.stderr if (u := re.search(r"http://127\.0\.0\.1:\d+", line)))
    senders = [threading.Thread(target=send, args=(url,)) for _ in range(4)]
    for sender in senders:
        sender.start()
    until(lambda: len(answered) >= 20)
    process.kill()
    for sender in senders:
        sender.join()
    process.wait()
    process.stderr.close()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        found = [n for (n,) in connection.execute("SELECT (data::varchar)::int FROM t").fetchall()]
    assert set(answered) <= set(found)
    assert len(found) == len(set(found)), "each request is one row"
