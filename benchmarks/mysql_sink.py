"""A sink of upserts to MariaDB: the content of a table with a primary key, then an update of every second row.

As `postgres_sink`, which see. Peer: LOAD DATA of the same rows into an empty table with the same primary key, from a
file that is ready.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.servers.mariadb import PASSWORD, USER, MariaDB

from benchmarks.kafka_sink import CHECK
from benchmarks.postgres_sink import ours, shown
from benchmarks.processes import cpu_seconds

TABLE = "CREATE TABLE {name} (id bigint PRIMARY KEY, ts datetime(6), amount bigint, note text)"
SINK = """
CREATE SINK s FROM t WITH (connector = 'jdbc', jdbc.url = 'jdbc:mariadb://127.0.0.1:{port}/bench', user = '{user}',
    password = '{password}', table.name = 'ours', type = 'upsert', primary_key = 'id')
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("mysql_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        server = MariaDB.started(Path(folder) / "mariadb")
        try:
            with server.connect() as target, target.cursor() as cursor:

                def ask(query: str) -> Any:
                    cursor.execute(query)
                    return cursor.fetchone()

                ask("CREATE DATABASE bench")
                ask("USE bench")
                ask(TABLE.format(name="ours"))
                create = SINK.format(port=server.port, user=USER, password=PASSWORD)
                ours(create, ask, options.rows, options.parallelism, "SIGNED")
                file = Path(folder) / "rows"
                ask(f"SELECT * FROM ours INTO OUTFILE '{file}'")
                ask(TABLE.format(name="peer"))
                before, began = cpu_seconds(os.getpid()), time.perf_counter()
                ask(f"LOAD DATA INFILE '{file}' INTO TABLE peer")
                seconds, used = time.perf_counter() - began, cpu_seconds(os.getpid()) - before
                check = CHECK.replace("BIGINT", "SIGNED")
                assert ask(check.replace("FROM t", "FROM peer")) == ask(check.replace("FROM t", "FROM ours"))
            shown("LOAD DATA of the same rows", options.rows, seconds, used)
        finally:
            server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
