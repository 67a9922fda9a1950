"""How long clients wait for a standby: from the end or hang of the server that writes to the next committed row."""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from pathlib import Path

from scripts.servers.process import free_ports
from tests.standbys import Server, connected

SCRIPT = """
CREATE TABLE orders (id int PRIMARY KEY, item int, amount int);
CREATE TABLE items (item int PRIMARY KEY, name varchar);
INSERT INTO items SELECT g, 'name ' || g FROM generate_series(1, 1000) AS g(g);
INSERT INTO orders SELECT g, g % 1000 + 1, g % 97 FROM generate_series(1, {rows}) AS g(g);
CREATE MATERIALIZED VIEW sums AS SELECT name, count(*) AS n, sum(amount) AS amount
FROM orders LEFT JOIN items ON orders.item = items.item GROUP BY name;
CREATE MATERIALIZED VIEW joined AS SELECT id, name, amount FROM orders LEFT JOIN items ON orders.item = items.item;
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--runtime", choices=("spark", "inprocess"), default="spark")
    parser.add_argument("--hang", action="store_true", help="stop the process instead of killing it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "orders.sql"
        script.write_text(SCRIPT.format(rows=options.rows))
        path, ports = str(Path(folder) / "db"), free_ports(2)

        def start(number: int) -> Server:
            other = ("--other", f"127.0.0.1:{ports[1 - number]}") if options.hang else ()
            return Server(path, ports[number], "--parallelism", "2", str(script), *other, runtime=options.runtime)

        running = [start(0)]
        running[0].writes()
        running.append(start(1))
        waits: list[tuple[float, float, float]] = []
        for turn in range(options.turns):
            ending, taking = running[turn % 2], running[1 - turn % 2]
            taking.stands_by()
            with connected(*ports) as client:
                client.execute("FLUSH")
            time.sleep(1)  # the standby asks the other server meanwhile
            began_s = time.perf_counter()
            if options.hang:
                ending.process.send_signal(signal.SIGSTOP)
            else:
                ending.kill()
            taking.writes()
            listens_s = time.perf_counter() - began_s
            with connected(ports[1 - turn % 2]) as client:
                client.execute(f"INSERT INTO orders VALUES ({-turn - 1}, 1, 1)")
                written_s = time.perf_counter() - began_s
                client.execute("FLUSH")
                (count,) = client.execute("SELECT count(*) FROM joined").fetchone()
            assert count == options.rows + turn + 1
            waits.append((listens_s, written_s, time.perf_counter() - began_s))
            print("  ".join(f"{name} {s:.2f} s" for name, s in zip(("listens", "row", "view"), waits[-1], strict=True)))
            ending.kill()
            running[turn % 2] = start(turn % 2)
        medians = [statistics.median(w) for w in zip(*waits, strict=True)]
        print(
            "medians: "
            + "  ".join(f"{name} {s:.2f} s" for name, s in zip(("listens", "row", "view"), medians, strict=True))
        )
        for server in running:
            server.kill()
    return 0
