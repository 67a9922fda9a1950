"""What the environment of the process says, and what is refused of it."""

from __future__ import annotations

import pytest

import watersmeet
from watersmeet.errors import Error
from watersmeet.system.process import bytes_of, seconds_of

NAME = "WATERSMEET_OF_THIS_TEST"


def refused(asked):
    with pytest.raises(Error, match=f"{NAME} is a number of ") as problem:
        asked()
    assert problem.value.condition == "INVALID_PARAMETER"


@pytest.mark.parametrize("text", ["1 GB", "-1", "1.5", "1e9", "nan", "²", "0"])
def test_bytes(monkeypatch, text):
    monkeypatch.setenv(NAME, text)
    refused(lambda: bytes_of(NAME))


@pytest.mark.parametrize("text", ["ten", "-0.1", "nan", "inf", "-inf", "1 s"])
def test_seconds(monkeypatch, text):
    monkeypatch.setenv(NAME, text)
    refused(lambda: seconds_of(NAME))


def test_what_can_be_used(monkeypatch):
    for text, found_bytes, found_s in (("", None, None), ("12", 12, 12.0)):
        monkeypatch.setenv(NAME, text)
        assert (bytes_of(NAME), seconds_of(NAME)) == (found_bytes, found_s)
    monkeypatch.setenv(NAME, "0")
    assert (bytes_of(NAME, least=0), seconds_of(NAME)) == (0, 0.0)
    monkeypatch.delenv(NAME)
    assert (bytes_of(NAME), seconds_of(NAME)) == (None, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WATERSMEET_MERGE_BYTES", "many"),
        ("WATERSMEET_WORKER_BYTES", "0"),
        ("WATERSMEET_READING_SECONDS", "nan"),
    ],
)
def test_a_start_that_is_refused_overtakes_nobody(tmp_path, monkeypatch, name, text):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")
        (tmp_path / "db" / "LOCK").unlink()
        with monkeypatch.context() as environment:
            environment.setenv(name, text)
            with pytest.raises(Error, match=f"{name} is a number of") as problem:
                watersmeet.connect(tmp_path / "db", runtime="inprocess")
            assert problem.value.condition == "INVALID_PARAMETER"
            watersmeet.connect(tmp_path / "db", read_only=True).close()
        connection.execute("INSERT INTO t VALUES (1)")


def test_addresses_of_stores(monkeypatch):
    for text in ("host:9000", "", "http://"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", text)
        with pytest.raises(Error, match="AWS_ENDPOINT_URL is ") as problem:
            watersmeet.connect("s3://bucket/db", read_only=True)
        assert problem.value.condition == "INVALID_PARAMETER"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "perhaps")
    with pytest.raises(Error, match='AWS_UNSIGNED_PAYLOAD is true or false, not "perhaps"'):
        watersmeet.connect("s3://bucket/db", read_only=True)
