"""The flights and the weather of 2013 as four streams of events, each in the order in which its events became known.

An event's time is an instant (timestamptz). The package has clocks instead: `hour` and `minute` of a scheduled
departure in New York, `arr_time` in the zone of the destination, and `time_hour`, the instant of the scheduled hour. So

- scheduled = time_hour + minute, departed = scheduled + dep_delay: no clock is read, a change to or from summer time is
  no matter;
- arrived = the first instant after the departure at which clocks at the destination show arr_time. Where that falls
  into the
  hour that a clock shows twice (2013-11-03 01:00 to 02:00 in most zones) the zone's rule decides as DuckDB has it. That
  this is
  right is checked for every flight: it leaves 5 to 235 minutes for taxiing beside the package's own air_time.

A flight that was cancelled has no departed and no arrived, one that was diverted no arrived: they are in `flights`
only.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import duckdb
from feed import data_folder

#: The streams: the time of their events, and what events of one time differ by.
STREAMS = {
    "flights": ("scheduled", "flight_id"),
    "departures": ("departed", "flight_id"),
    "arrivals": ("arrived", "flight_id"),
    "weather": ("observed", "origin"),
}
#: Events become known up to this long after their time, each with a delay of its own: streams are not in order of time.
DELAY_MINUTES = 30

#: Airports that flights go to and that the package's table lacks.
ZONES = (
    "('BQN', 'America/Puerto_Rico'), ('PSE', 'America/Puerto_Rico'), ('SJU', 'America/Puerto_Rico'), ('STT', "
    "'America/St_Thomas')"
)

TABLES = """
SET TimeZone = 'UTC';
CREATE TEMP TABLE zones AS
    SELECT faa AS dest, tzone FROM read_csv('{data}/airports.csv', nullstr = ['NA', '\\N']) WHERE tzone IS NOT NULL
    UNION ALL FROM (VALUES {zones}) AS lacking (dest, tzone);
CREATE TEMP TABLE known AS
    SELECT row_number() OVER (ORDER BY time_hour, minute, carrier, flight, origin) AS flight_id,
           time_hour + to_minutes(minute) AS scheduled, scheduled + to_minutes(dep_delay) AS departed,
           carrier, flight, tailnum, origin, dest, dep_delay, arr_delay, air_time, tzone,
           to_minutes(arr_time // 100 * 60 + arr_time % 100) AS clock
    FROM read_csv('{flights}', nullstr = 'NA') JOIN zones USING (dest);
CREATE TEMP TABLE landed AS
    SELECT *, CASE WHEN same_day < departed THEN next_day ELSE same_day END AS arrived FROM (
        SELECT *, date_trunc('day', departed AT TIME ZONE tzone) AS day,
               (day + clock) AT TIME ZONE tzone AS same_day, (day + INTERVAL 1 DAY + clock) AT TIME ZONE
                   tzone AS next_day
        FROM known);
CREATE TABLE flights AS SELECT flight_id, scheduled, carrier, flight, tailnum, origin, dest, dep_delay FROM known;
CREATE TABLE departures AS
    SELECT flight_id, departed, tailnum, origin, dest, dep_delay FROM known WHERE departed IS NOT NULL;
CREATE TABLE arrivals AS
    SELECT flight_id, arrived, tailnum, origin, dest, arr_delay FROM landed WHERE arrived IS NOT NULL
        AND arr_delay IS NOT NULL;
CREATE TABLE weather AS
    SELECT origin, time_hour AS observed, temp, wind_dir, wind_speed, wind_gust, precip, visib
    FROM read_csv('{data}/weather.csv', nullstr = 'NA');
"""

WRONG = """
SELECT count(*) FROM landed
WHERE arr_delay IS NOT NULL AND date_diff('minute', departed, arrived) - air_time NOT BETWEEN 5 AND 235
"""


def open_events() -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with a table for each of STREAMS."""
    data = data_folder()
    connection = duckdb.connect()
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(data / "flights.csv.zip") as archive:
        csv = archive.extract(archive.namelist()[0], scratch)
        connection.execute(TABLES.format(data=data, flights=csv, zones=ZONES))
    wrong = connection.execute(WRONG).fetchall()[0][0]
    if wrong:
        raise SystemExit(f"flights: {wrong} arrivals do not fit their air_time")
    for name, (time, other) in STREAMS.items():
        connection.execute(f"ALTER TABLE {name} ADD COLUMN known_at TIMESTAMPTZ")
        connection.execute(
            f"UPDATE {name} SET known_at = {time} + to_seconds(hash({time}, {other}) % {DELAY_MINUTES * 60})"
        )
    return connection


def write_day(connection: duckdb.DuckDBPyConnection, folder: Path, day: int) -> None:
    """Writes what became known on a day of 2013 (0: the first of January, in UTC) as a CSV file for each stream."""
    for name in STREAMS:
        target = folder / name / f"day-{day:03d}.csv"
        part = target.with_name(f".{target.name}.part")
        connection.execute(
            f"COPY (SELECT * EXCLUDE known_at FROM {name} WHERE known_at >= TIMESTAMPTZ '2013-01-01 "
            f"00:00:00Z' + to_days({day}) "
            f"AND known_at < TIMESTAMPTZ '2013-01-01 00:00:00Z' + to_days({day + 1}) ORDER BY known_at) TO "
            f"'{part}' (HEADER)"
        )
        part.rename(target)
