"""A table that follows a table of PostgreSQL or MariaDB: the rows that it has, then an update of every second one.

Timed until the rows are in the table here, as FLUSH says, and until a view over it shows them; then the number of rows
and a checksum are compared with the server's. The server runs on the same cores. Peers: PostgreSQL's COPY of the same
rows as text, and its own messages of the same changes (`pg_logical_slot_peek_binary_changes`), which are read and
thrown away; the bytes of MariaDB's log, which a replica receives and throws away, and its rows as text.

--rate N: instead, another process updates N rows a second for --seconds, in transactions of 10 to 1,000 rows. A lag is
how long after COMMIT there a transaction is in a view here. At the end the table here is compared with the server's.

--changes N: instead, how long it takes from COMMIT of the change of one row of a dimension there until SELECT shows the
rows of a view here that join it, N times, one after the other. The view has a row for each of --rows facts.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.servers.mariadb import PASSWORD as MYSQL_PASSWORD
from scripts.servers.mariadb import USER as MYSQL_USER
from scripts.servers.mariadb import MariaDB
from scripts.servers.postgres import PASSWORD, USER, Postgres

import watersmeet
from benchmarks.changing import BEAT
from benchmarks.kafka_sink import CHECK
from benchmarks.mysql_sink import TABLE as MYSQL_TABLE
from benchmarks.postgres_sink import TABLE, shown
from benchmarks.processes import cpu_seconds, median, percentile, wait_until
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.mysql.binlog import Gtids, LogReader

FILL = """
INSERT INTO t SELECT i, timestamp '2024-01-01' + i * interval '1 second', i * 7 % 1000, 'note ' || i
FROM generate_series(0, {last}) AS g(i)
"""
MYSQL_FILL = """
INSERT INTO t SELECT seq, '2024-01-01' + INTERVAL seq SECOND, seq * 7 % 1000, CONCAT('note ', seq)
FROM seq_0_to_{last}
"""
UPDATE = "UPDATE t SET amount = amount + 1 WHERE id % 2 = 0"
SOURCE = """
CREATE SOURCE there WITH (connector = '{connector}', hostname = '127.0.0.1', port = '{port}', username = '{user}',
    password = '{password}', database.name = '{database}'{more})
"""
#: Of the source and of the peer, which reads the server's messages of the same tables.
PUBLICATION = "rw_publication"
CHANGES = f"""
SELECT count(*), sum(length(data)) FROM pg_logical_slot_peek_binary_changes('peer', NULL, NULL, 'proto_version', '1',
    'publication_names', '{PUBLICATION}')
"""
DIMENSION = "CREATE TABLE dimension (id bigint PRIMARY KEY, rate bigint, name varchar(40))"
DIMENSION_ROWS = {
    "postgres": "INSERT INTO dimension SELECT i, i % 1000, 'name ' || i FROM generate_series(0, {last}) AS g(i)",
    "mysql": "INSERT INTO dimension SELECT seq, seq % 1000, CONCAT('name ', seq) FROM seq_0_to_{last}",
}
FACTS = """
CREATE TABLE facts (id bigint PRIMARY KEY, dimension bigint, amount bigint);
INSERT INTO facts SELECT i, i % {size}, i * 7 % 1000 FROM generate_series(0, {last}) AS g(i);
CREATE MATERIALIZED VIEW v AS SELECT f.id, f.amount, d.rate, d.name FROM facts f JOIN dimension d ON f.dimension = d.id;
FLUSH
"""
#: Of the view, and what it has to be: each row of the dimension there comes once for each of its facts.
HERE = "SELECT count(*), sum(rate), sum(length(name)) FROM v"
THERE = "SELECT {each} * count(*), {each} * sum(rate), {each} * sum(length(name)) FROM dimension"
#: The follower is asked so often what it shows.
EVERY_S = 0.05
#: Changes before those that are timed.
WARMING = 5
Ask = Callable[[str], Any]


def changes(source: str, ask: Ask, options: argparse.Namespace) -> None:
    """Prints how long single changes of the dimension take."""
    size, each = options.rows // options.facts, options.facts
    ask(DIMENSION)
    ask(DIMENSION_ROWS[options.system].format(last=size - 1))
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=options.parallelism, runtime=options.runtime) as connection,
    ):
        connection.execute(source)
        connection.execute("CREATE TABLE dimension (*) FROM there TABLE 'dimension'")
        for statement in FACTS.format(size=size, last=options.rows - 1).split(";"):
            connection.execute(statement)
        seconds, epochs = [], []
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        for number in range(options.changes + WARMING):
            ask(
                f"UPDATE dimension SET rate = {1000 + number}, name = 'changed {number}' WHERE id = {number * 7 % size}"
            )
            find = f"SELECT count(*) FROM v WHERE rate = {1000 + number}"

            def visible() -> bool:
                if options.runtime == "inprocess":  # which works only while it is asked to
                    connection.execute("FLUSH")
                return connection.execute(find).fetchone() == (each,)  # noqa: B023

            seconds.append(wait_until(visible, 60))
            epochs.append(connection.status()["duration_us"] / 1e6)
            time.sleep(0.1)
            if number == WARMING:
                before, began = cpu_seconds(os.getpid()), time.perf_counter()
        used = (cpu_seconds(os.getpid()) - before) / (time.perf_counter() - began)
        found, expected = connection.execute(HERE).fetchone(), ask(THERE.format(each=each))
        assert tuple(map(int, found)) == tuple(map(int, expected)), (found, expected)
        seconds, epochs = seconds[WARMING:], epochs[WARMING:]
        print(
            f"{options.runtime}: {options.changes} changes of a row with {each} of {options.rows} rows: "
            f"median {median(seconds) * 1000:.0f} ms, 99th percentile {percentile(seconds, 0.99) * 1000:.0f} ms, "
            f"of that epochs {median(epochs) * 1000:.0f} ms; {used:.1f} of a core; load {os.getloadavg()[0]:.1f}"
        )


def sustained(source: str, ask: Ask, check: str, server: Any, options: argparse.Namespace) -> int:
    """Prints how a table and a view over it follow changes at a rate. The number of rows that were changed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=options.parallelism, runtime=options.runtime) as connection,
    ):
        connection.execute(source)
        connection.execute("CREATE TABLE t (*) FROM there TABLE 't'")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id, amount FROM t WHERE amount > 10 OR id < 0")
        connection.execute("FLUSH")
        seen: list[tuple[float, int]] = []

        def look() -> int:
            if options.runtime == "inprocess":  # which works only while it is asked to
                connection.execute("FLUSH")
            number = int(connection.execute(f"SELECT amount FROM v WHERE id = {BEAT}").fetchone()[0])
            seen.append((time.time(), number))
            return number

        told = [options.system, server.to_json(), options.rows, options.rate, options.seconds]
        before, servers, began = cpu_seconds(os.getpid()), cpu_seconds(server.pid), time.time()
        command = [sys.executable, "-m", "benchmarks.changing", *map(str, told)]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        while not select.select([writer.stdout], [], [], EVERY_S)[0]:
            look()
        made = json.loads(writer.stdout.readline())
        committed_s, ended = made["committed_s"], made["committed_s"][-1]
        wait_until(lambda: look() >= len(committed_s), 600, EVERY_S)
        seconds, rows = ended - began, made["rows"]
        server_s, writer_s = cpu_seconds(server.pid) - servers, cpu_seconds(writer.pid)
        own_s = cpu_seconds(os.getpid()) - before - server_s - writer_s
        writer.communicate()
        lags, place = [], 0
        for number, at in enumerate(committed_s, 1):
            while seen[place][1] < number:
                place += 1
            lags.append(seen[place][0] - at)
        connection.execute("FLUSH")
        for here, theirs in ((CHECK, check), ("SELECT count(*), sum(amount) FROM v", None)):
            found = connection.execute(here).fetchone()
            expected = ask(theirs or "SELECT count(*), sum(amount) FROM t WHERE amount > 10 OR id < 0")
            assert tuple(map(int, found)) == tuple(map(int, expected)), (here, found, expected)
    print(
        f"{options.system}, {options.runtime}: {rows:,} rows in {len(committed_s):,} transactions, "
        f"{rows / seconds:,.0f} rows/s for {seconds:.0f} s; lag: median {median(lags) * 1000:.0f} ms, "
        f"99th percentile {percentile(lags, 0.99) * 1000:.0f} ms, at the end {lags[-1] * 1000:.0f} ms; "
        f"processor seconds: ours {own_s:.1f}, the server's {server_s:.1f}, the writer's {made['cpu_s']:.1f}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return rows


def ours(source: str, ask: Ask, check: str, rows: int, parallelism: int, before_update: Callable[[], None]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
    ):
        connection.execute(source)
        for name, statement, count in (("rows that are there", "", rows), ("updates", UPDATE, rows // 2)):
            if statement:
                before_update()
                ask(statement)
            before, began = cpu_seconds(os.getpid()), time.perf_counter()
            if not statement:
                connection.execute("CREATE TABLE t (*) FROM there TABLE 't'")
                connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id, amount FROM t WHERE amount > 10")
            connection.execute("FLUSH")
            shown(name, count, time.perf_counter() - began, cpu_seconds(os.getpid()) - before)
            for here, theirs in ((CHECK, check), ("SELECT count(*), sum(amount) FROM v", None)):
                found = connection.execute(here).fetchone()
                expected = ask(theirs or "SELECT count(*), sum(amount) FROM t WHERE amount > 10")
                assert tuple(map(int, found)) == tuple(map(int, expected)), (name, found)


def postgres(server: Postgres, options: argparse.Namespace) -> None:
    rows, parallelism = options.rows, options.parallelism
    with server.connect() as there:

        def ask(query: str) -> Any:
            cursor = there.execute(query)
            return cursor.fetchone() if cursor.description else None

        source = SOURCE.format(
            connector="postgres-cdc",
            port=server.port,
            user=USER,
            password=PASSWORD,
            database="postgres",
            more=f", publication.name = '{PUBLICATION}'",
        )
        if options.changes:
            changes(source, ask, options)
            return
        ask(TABLE.format(name="t"))
        ask(FILL.format(last=rows - 1))
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        with there.cursor().copy("COPY t TO STDOUT") as copied:
            lines = sum(bytes(block).count(b"\n") for block in copied)
        assert lines == rows
        shown("the server's COPY", rows, time.perf_counter() - began, cpu_seconds(os.getpid()) - before)
        slot = "SELECT pg_create_logical_replication_slot('peer', 'pgoutput')"
        changed_rows = rows // 2
        if options.rate:
            ask(f"INSERT INTO t VALUES ({BEAT}, NULL, 0, NULL)")
            ask(f"CREATE PUBLICATION {PUBLICATION}")
            ask(slot)
            changed_rows = sustained(source, ask, CHECK, server, options)
        else:
            ours(source, ask, CHECK, rows, parallelism, lambda: ask(slot))
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        messages, size_bytes = ask(CHANGES)
        used = cpu_seconds(os.getpid()) - before
        assert messages >= changed_rows, (messages, changed_rows)
        shown("the server's messages", changed_rows, time.perf_counter() - began, used)
        print(f"rows and checksum as the server has them; {int(size_bytes) >> 20} MB of messages")


def mysql(server: MariaDB, options: argparse.Namespace) -> None:
    rows, parallelism = options.rows, options.parallelism
    with server.connect() as there, there.cursor() as cursor:

        def ask(query: str) -> Any:
            cursor.execute(query)
            return cursor.fetchone()

        ask("CREATE DATABASE bench")
        ask("USE bench")
        source = SOURCE.format(
            connector="mysql-cdc",
            port=server.port,
            user=MYSQL_USER,
            password=MYSQL_PASSWORD,
            database="bench",
            more="",
        )
        if options.changes:
            changes(source, ask, options)
            return
        ask(MYSQL_TABLE.format(name="t"))
        ask(MYSQL_FILL.format(last=rows - 1))
        places: list[str] = []
        check, changed_rows = CHECK.replace("BIGINT", "SIGNED"), rows // 2
        if options.rate:
            ask(f"INSERT INTO t VALUES ({BEAT}, NULL, 0, NULL)")
            places.append(ask("SELECT @@gtid_binlog_pos")[0])
            changed_rows = sustained(source, ask, check, server, options)
        else:
            begin = lambda: places.append(ask("SELECT @@gtid_binlog_pos")[0])
            ours(source, ask, check, rows, parallelism, begin)
        end = Gtids.parsed(ask("SELECT @@gtid_binlog_pos")[0])
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        address = Server("127.0.0.1", server.port, MYSQL_USER, MYSQL_PASSWORD, "bench")
        reader = LogReader(address, 4711, Gtids.parsed(places[0]), {})
        while not reader.reached.has(end):
            reader.read(1.0, tuple)
        shown("the server's log", changed_rows, time.perf_counter() - began, cpu_seconds(os.getpid()) - before)
        size_bytes = reader.read_bytes
        reader.close()
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        cursor.execute("SELECT * FROM t INTO OUTFILE '{}'".format(server.folder / "rows"))
        shown("its rows as a file", rows, time.perf_counter() - began, cpu_seconds(os.getpid()) - before)
        print(f"rows and checksum as the server has them; {size_bytes >> 20} MB of log")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("capture", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--system", choices=("postgres", "mysql"), default="postgres")
    parser.add_argument("--changes", type=int, default=0)
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--facts", type=int, default=100, help="of each row of the dimension")
    parser.add_argument("--runtime", choices=("inprocess", "spark"), default="inprocess")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        kind, run = (Postgres, postgres) if options.system == "postgres" else (MariaDB, mysql)
        server: Any = kind.started(Path(folder) / "server")
        try:
            run(server, options)
        finally:
            server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
