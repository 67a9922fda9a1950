"""Objects of a store: against a real server of S3's protocol."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripts.servers.s3 import REGION

from watersmeet.connectors.lakes.client import delta_storage
from watersmeet.errors import Error
from watersmeet.objectstores import stores
from watersmeet.objectstores.base import Location, ObjectReplacedError, StoreProblem
from watersmeet.objectstores.stores import CloudStore, ObjectFile, open_store


def location_of(bucket) -> Location:
    settings = {
        "access_key_id": bucket.keys[0],
        "secret_access_key": bucket.keys[1],
        "endpoint": bucket.server.url,
        "region": REGION,
    }
    return Location(f"s3://{bucket.name}", tuple(sorted(settings.items())))


def test_one_of_several_that_create_succeeds(bucket):
    store = open_store(location_of(bucket))
    assert store.create("a/b.txt", b"first")
    assert not store.create("a/b.txt", b"second")
    assert store.get("a/b.txt") == bucket.get("a/b.txt") == b"first"
    store.put("a/b.txt", b"third")
    assert bucket.get("a/b.txt") == b"third"


def test_names_are_listed_in_order_from_a_place(bucket):
    store = open_store(location_of(bucket))
    for i in range(1003):
        store.put(f"many/{i:04}", b"x")
    store.put("manyfold", b"no directory of that name")
    names = [name for name, _ in store.list("many")]
    assert names == [f"many/{i:04}" for i in range(1003)]
    assert [name for name, _ in store.list("many", after="many/1000")] == ["many/1001", "many/1002"]
    store.delete([*names, "many/none"])
    assert [name for name, _ in store.list()] == ["manyfold"]


def test_a_range_is_of_the_content_that_was_asked_for(bucket):
    store = open_store(location_of(bucket))
    store.put("x", b"0123456789")
    was = store.stat("x")
    assert was.size_bytes == 10
    assert store.range("x", 2, 5, was.etag) == b"234"
    store.put("x", b"abcdefghij")
    with pytest.raises(ObjectReplacedError):
        store.range("x", 2, 5, was.etag)
    store.delete(["x"])
    for missing in (lambda: store.range("x", 2, 5, was.etag), lambda: store.get("x"), lambda: store.stat("x")):
        with pytest.raises(FileNotFoundError):
            missing()


def test_a_file_of_an_object_reads_as_a_file_does(bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "BLOCK_BYTES", 7)
    content = bytes(range(200))
    bucket.put("x", content)
    (tmp_path / "x").write_bytes(content)
    etag = open_store(location_of(bucket)).stat("x").etag
    with ObjectFile(location_of(bucket), "x", len(content), etag) as file, (tmp_path / "x").open("rb") as plain:
        for place, size in ((0, 7), (5, 4), (6, 30), (14, 7), (190, 50), (200, 3), (250, 1), (0, -1)):
            assert file.seek(place) == plain.seek(place)
            assert file.read(size) == plain.read(size)
            assert file.tell() == plain.tell()
        assert file.seek(-10, 2) == plain.seek(-10, 2)
        assert file.read() == plain.read()


def test_arrow_reads_parquet_from_it(bucket, tmp_path):
    rows = pa.table({"a": list(range(1000)), "b": [str(i) for i in range(1000)]})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=100)
    bucket.put("x.parquet", (tmp_path / "x.parquet").read_bytes())
    stat = open_store(location_of(bucket)).stat("x.parquet")
    assert pq.ParquetFile(ObjectFile(location_of(bucket), "x.parquet", stat.size_bytes, stat.etag)).read() == rows


def test_a_missing_bucket_is_named(bucket):
    store = open_store(replace(location_of(bucket), url="s3://not-there"))
    for call in (lambda: list(store.list()), lambda: store.put("x", b""), lambda: store.create("x", b"")):
        with pytest.raises(StoreProblem, match='there is no bucket "not-there"') as problem:
            call()
        assert not problem.value.passes
        assert problem.value.as_error().condition == "CONNECTOR_OPTION"


def test_wrong_credentials_are_said_and_never_shown(own_bucket):
    good = own_bucket.server.require_credentials()
    settings = dict(location_of(own_bucket).settings) | {"access_key_id": good[0], "secret_access_key": good[1]}
    location = Location(location_of(own_bucket).url, tuple(sorted(settings.items())))
    open_store(location).put("x", b"1")
    for name in ("access_key_id", "secret_access_key"):
        wrong = {**settings, name: "WRONGWRONG"}
        with pytest.raises(StoreProblem, match=r"access to bucket .* is refused") as problem:
            list(open_store(Location(location.url, tuple(sorted(wrong.items())))).list())
        assert not problem.value.passes
        shown = f"{problem.value} {problem.value.__cause__} {problem.value.as_error()} {location!r}"
        assert not any(secret in shown for secret in (*good, "WRONGWRONG"))


@contextlib.contextmanager
def answering(status, body=b""):
    """The location of a server that answers all requests in the same way."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_HEAD = do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        settings = {"access_key_id": "a", "secret_access_key": "b", "region": REGION}
        settings["endpoint"] = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield CloudStore(Location("s3://b"), settings)
        finally:
            server.shutdown()
            thread.join()


REQUESTS = {
    "create": lambda store: store.create("x", b"1"),
    "put": lambda store: store.put("x", b"1"),
    "get": lambda store: store.get("x"),
    "range": lambda store: store.range("x", 0, 1, "tag"),
    "stat": lambda store: store.stat("x"),
    "list": lambda store: list(store.list()),
}


@pytest.mark.parametrize(("status", "fine"), [(409, {"create"}), (412, {"create"}), (404, {"get", "range", "stat"})])
@pytest.mark.parametrize("request_of", REQUESTS)
def test_what_is_said_of_an_object_that_nobody_asked_for_is_a_problem_that_passes(status, fine, request_of):
    """As 409 is, to one of several that replace an object. A file that "is there" or "is not" would be believed."""
    with answering(status) as store:
        try:
            assert not REQUESTS[request_of](store)
        except StoreProblem as problem:
            assert problem.passes
            assert request_of not in fine
        except OSError as said:
            assert request_of in fine
            assert isinstance(said, FileNotFoundError)
        else:
            assert request_of in fine


@pytest.mark.parametrize(
    ("status", "code", "passes", "message"),
    [
        (400, "ExpiredToken", False, "access to bucket .* is refused: ExpiredToken"),
        (400, "InvalidToken", False, "access to bucket .* is refused: InvalidToken"),
        (403, "RequestTimeTooSkewed", False, "access to bucket .* is refused: RequestTimeTooSkewed"),
        (400, "AuthorizationHeaderMalformed", False, "bucket .* is in another region: AuthorizationHeaderMalformed"),
        (301, "PermanentRedirect", False, "bucket .* is in another region"),
        (400, "RequestTimeout", True, "bucket .* can't be reached: RequestTimeout"),
        (429, "TooManyRequests", True, "bucket .* can't be reached: TooManyRequests"),
    ],
)
def test_what_does_not_pass_is_told_from_what_does(status, code, passes, message, monkeypatch):
    monkeypatch.setitem(stores._RETRIES, "max_retries", 0)
    with answering(status, f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()) as store:
        with pytest.raises(StoreProblem, match=message) as problem:
            store.get("x")
        assert problem.value.passes == passes
    with answering(400) as store, pytest.raises(StoreProblem, match="refuses a request: 400 Bad Request") as problem:
        store.stat("x")
    assert "credentials" in problem.value.hint


def test_a_server_that_is_away_passes(own_bucket):
    own_bucket.server.kill()
    with pytest.raises(StoreProblem, match="can't be reached: ") as problem:
        open_store(location_of(own_bucket)).get("x")
    assert problem.value.passes
    assert problem.value.as_error().condition == "RUNTIME_UNAVAILABLE"


def test_what_is_sent_encrypted_is_not_hashed_for_its_signature(monkeypatch):
    made = []
    monkeypatch.setattr("obstore.store.S3Store", lambda bucket, **options: made.append(options))
    monkeypatch.delenv("AWS_UNSIGNED_PAYLOAD", raising=False)
    for endpoint in ("http://127.0.0.1:1", "https://127.0.0.1:1", ""):
        CloudStore(Location("s3://b"), {"endpoint": endpoint} if endpoint else {})
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "false")
    CloudStore(Location("s3://b"), {})
    assert [options.get("unsigned_payload", False) for options in made] == [False, True, True, False]


def test_a_store_takes_what_was_not_hashed(bucket, monkeypatch):
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "true")
    location = location_of(bucket)
    store = CloudStore(location, dict(location.settings))
    store.put("x", b"content")
    assert bucket.get("x") == store.get("x") == b"content"


def test_options_that_the_library_does_not_know_are_refused():
    with pytest.raises(Error, match="can't be used") as problem:
        open_store(Location("s3://b", (("no_such_option", "hidden-value"),)))
    assert problem.value.condition == "CONNECTOR_OPTION"
    assert "hidden-value" not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Error performing PUT http://169.254.169.254/latest/api/token: 403 Forbidden", "there are no credentials"),
        ("Generic MicrosoftAzure error: Account must be specified", "there are no credentials"),
        ("Error performing GET http://127.0.0.1/bucket: 403 Forbidden", "access to"),
    ],
)
def test_what_machines_of_clouds_answer_is_no_refusal_of_the_store(text, said):
    problem = stores._problem(Exception(text), Location("s3://bucket"))
    assert isinstance(problem, StoreProblem)
    assert problem.message.startswith(said)
    assert not problem.passes


@pytest.mark.parametrize(
    "endpoint", ["http://host:x", "host:9000", "http://", "ftp://host", "http://host:99999", "http://[::1"]
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint):
    for store in (
        lambda: open_store(Location("s3://b", (("endpoint", endpoint),))),
        lambda: delta_storage({"s3.endpoint": endpoint}),
    ):
        with pytest.raises(Error, match="the endpoint of an object store is no URL") as problem:
            store()
        assert problem.value.condition == "CONNECTOR_OPTION"


@pytest.mark.parametrize("whole", [10, 5 << 20])
def test_large_objects_are_sent_in_parts(bucket, monkeypatch, whole):
    monkeypatch.setattr(stores, "_WHOLE_BYTES", whole)
    monkeypatch.setattr(stores, "_PART_BYTES", 5 << 20)
    store = open_store(location_of(bucket))
    data = bytes(range(256)) * (6 << 12)
    store.put("large", data[:1000], memoryview(data)[1000:-1], data[-1:])
    assert bucket.get("large") == data
    assert ("-" in store.stat("large").etag) == (whole < len(data))
