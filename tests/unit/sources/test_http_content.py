"""Dictionaries over HTTP, against a server in this process."""

from __future__ import annotations

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import watersmeet


class Documents(ThreadingHTTPServer):
    """Documents by path: status and body. asked: the headers of the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answering)
        self.documents = {}
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(dict(self.headers))
        status, body = self.server.documents.get(self.path.partition("?")[0], (404, b"no such document"))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body.decode())
            body = b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Documents() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture
def opened(tmp_path):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        yield connection


CREATE = "CREATE DICTIONARY d(k int, v string) PRIMARY KEY k SOURCE(HTTP({})) LAYOUT(DIRECT())"


def rows(connection, query):
    return sorted(connection.execute(query).fetchall(), key=str)


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("CSV", b"1,a\n2,b\n"),
        ("TSVWithNames", b"v\tk\na\t1\nb\t2\n"),
        ("JSONEachRow", b'{"k":1,"v":"a"}\n{"k":2,"v":"b"}'),
    ],
)
def test_a_document_is_read_in_its_format(opened, server, form, body):
    server.documents["/d"] = (200, body)
    opened.execute(CREATE.format(f"URL '{server.url}/d?x=1' FORMAT '{form}'"))
    assert rows(opened, "SELECT * FROM d") == [(1, "a"), (2, "b")]


def test_a_join_follows_the_document_and_outlives_the_server(opened, server):
    server.documents["/d"] = (200, b"1,a\n")
    opened.execute(CREATE.format(f"url '{server.url}/d' format 'CSV'"))
    opened.execute("CREATE STREAM s(n int, k int)")
    opened.execute("CREATE MATERIALIZED VIEW j AS SELECT n, d.v FROM s LEFT JOIN d ON s.k = d.k")
    opened.execute("INSERT INTO s(n, k) VALUES (1, 1); FLUSH")
    server.documents["/d"] = (200, b"1,b\n2,c\n")
    opened.execute("INSERT INTO s(n, k) VALUES (2, 1), (3, 2); FLUSH")
    server.documents["/d"] = (503, b"")
    opened.execute("INSERT INTO s(n, k) VALUES (4, 1); FLUSH")
    assert rows(opened, "SELECT n, v FROM table(j)") == [(1, "a"), (2, "b"), (3, "c"), (4, "b")]
    assert "the server answers 503" in str(rows(opened, "SHOW ERRORS"))
    server.documents["/d"] = (200, b"1,d\n")
    opened.execute("INSERT INTO s(n, k) VALUES (5, 1); FLUSH")
    assert rows(opened, "SHOW ERRORS") == []
    assert rows(opened, "SELECT n, v FROM table(j)")[-1] == (5, "d")


def test_headers_and_credentials_are_sent_and_never_shown(opened, server):
    server.documents["/d"] = (200, b"1,a\n")
    opened.execute(
        CREATE.format(
            f"URL '{server.url}/d' FORMAT 'CSV' CREDENTIALS(USER 'u' PASSWORD 'geheim') "
            "HEADERS(HEADER(NAME 'Api-Key' VALUE 'kennwort') HEADER(NAME 'Accept' VALUE 'text/csv'))"
        )
    )
    asked = server.asked[-1]
    assert asked["Authorization"] == "Basic " + base64.b64encode(b"u:geheim").decode()
    assert (asked["Api-Key"], asked["Accept"]) == ("kennwort", "text/csv")
    shown = str(rows(opened, "SHOW CREATE DICTIONARY d"))
    assert "geheim" not in shown
    assert "kennwort" not in shown
    server.documents["/d"] = (401, b"")
    with pytest.raises(watersmeet.Error) as found:
        opened.execute("SELECT * FROM d")
    assert found.value.hint == "Check CREDENTIALS and HEADERS."


@pytest.mark.parametrize(
    ("options", "condition", "message"),
    [
        ("URL '{url}/none' FORMAT 'CSV'", "CONNECTOR_OPTION", "the server answers 404"),
        ("URL '{url}/moved' FORMAT 'CSV'", "CONNECTOR_OPTION", "the server answers 302"),
        (
            "URL 'http://127.0.0.1:1/d?key=geheim' FORMAT 'CSV'",
            "RUNTIME_UNAVAILABLE",
            "http://127.0.0.1:1/d can't be read",
        ),
        ("URL 'http://127.0.0.1:1/ü' FORMAT 'CSV'", "CONNECTOR_OPTION", "as %20"),
        ("URL '{url}/broken' FORMAT 'CSV'", "INVALID_VALUE", "a record can't be read"),
        ("URL '{url}/d' FORMAT 'XML'", "CONNECTOR_OPTION", 'format "XML"'),
        ("URL '{url}/d'", "CONNECTOR_OPTION", 'needs the option "format"'),
        ("FORMAT 'CSV'", "CONNECTOR_OPTION", 'needs the option "url"'),
        ("URL 'file:///etc/passwd' FORMAT 'CSV'", "CONNECTOR_OPTION", "http:// or https://"),
        ("URL 'http://u:geheim@h/' FORMAT 'CSV'", "CONNECTOR_OPTION", "can't be in the URL"),
        ("URL '{url}/d' FORMAT 'CSV' COLOUR 'red'", "CONNECTOR_OPTION", 'no option "colour"'),
        ("URL '{url}/d' FORMAT 'CSV' CREDENTIALS(NAME 'u')", "CONNECTOR_OPTION", 'no option "credentials.name"'),
    ],
)
def test_what_can_not_be_read_is_refused(opened, server, options, condition, message):
    server.documents.update({"/d": (200, b""), "/moved": (302, b"http://127.0.0.1:1/"), "/broken": (200, b"x,a\n")})
    with pytest.raises(watersmeet.Error) as found:
        opened.execute(CREATE.format(options.format(url=server.url)))
    assert found.value.condition == condition
    assert message in found.value.message
    assert "geheim" not in found.value.message
    assert rows(opened, "SHOW TABLES") == []


def test_credentials_and_headers_are_nowhere_but_in_private_files(server, tmp_path):
    server.documents["/d"] = (200, b"1,a\n")
    given = "CREDENTIALS(USER 'me' PASSWORD 'planted-1') HEADERS(HEADER(NAME 'Key' VALUE 'planted-2'))"
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute(CREATE.format(f"URL '{server.url}/d' FORMAT 'CSV' {given}"))
        assert rows(connection, "SELECT k, v FROM d") == [(1, "a")]
        assert server.asked[-1]["Key"] == "planted-2"
        shown = connection.execute("SHOW CREATE DICTIONARY d").fetchall()
    assert "planted" not in str(shown)
    written = [f for f in (tmp_path / "db").rglob("*") if f.is_file() and b"planted" in f.read_bytes()]
    assert {f.parent.name for f in written} == {"secrets"}
