"""`watersmeet serve` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import psycopg
import pytest

from watersmeet.system.passwords import Verifier


def started(*arguments: str) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-m", "watersmeet", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.match(r"listening on 127\.0\.0\.1:(\d+)", line):
            return process, int(found[1])
    raise AssertionError(process.wait())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_it_runs_scripts_serves_and_ends_cleanly(tmp_path, number):
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2);CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t;"
    )
    path = str(tmp_path / "db")
    writer, port = started("--path", path, "--runtime", "inprocess", str(script))
    reader, reading = started("--path", path, "--read-only")
    try:
        with (
            psycopg.connect(port=port, host="127.0.0.1", user="u", autocommit=True) as client,
            psycopg.connect(port=reading, host="127.0.0.1", user="u", autocommit=True) as other,
        ):
            client.execute("INSERT INTO t VALUES (3)")
            client.execute("FLUSH")
            assert client.execute("SELECT s FROM v").fetchone() == (6,)
            assert other.execute("SELECT s FROM v").fetchone() == (6,)
            assert other.info.parameter_status("default_transaction_read_only") == "on"
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                other.execute("INSERT INTO t VALUES (4)")
            for process in (reader, writer):
                process.send_signal(number)
            assert [reader.wait(30), writer.wait(30)] == [0, 0]
            with pytest.raises(psycopg.OperationalError, match="administrator"):
                client.execute("SELECT 1")
    finally:
        for process in (reader, writer):
            process.kill()
            process.stderr.close()
    writer, _ = started("--path", path, "--runtime", "inprocess")
    writer.terminate()
    assert writer.wait(30) == 0
    writer.stderr.close()


@pytest.mark.slow
def test_a_command_makes_what_stands_in_place_of_a_password():
    command = [sys.executable, "-m", "watersmeet", "password"]
    made = subprocess.run(command, check=True, input="secret\n", text=True, capture_output=True).stdout
    assert Verifier.read(made.strip()).accepts("secret")
    assert subprocess.run(command, check=False, input="\n", text=True, capture_output=True).returncode == 1
