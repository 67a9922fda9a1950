"""Times in time zones are those of PostgreSQL: local times and moments, in gaps and overlaps of summer time, by names
and abbreviations, in queries, views and keys. A zone that is not supported is refused.
"""

from __future__ import annotations

import datetime as dt
import random
import zoneinfo
from collections import Counter

import pytest

import watersmeet
from tests.servers import PostgresDatabase
from tests.thorough import THOROUGH, mostly_slow
from watersmeet.values.times import ABBREVIATIONS, is_zone_name

_ROWS = 1000 if THOROUGH else 60
#: Zones that PostgreSQL also has: offsets with the signs of POSIX, and rules that are written out.
_POSIX = ("UTC+3", "GMT-5", "+05:30", "-08", "<+03>-3", "JST-9", "AEST-10AEDT,M10.1.0,M4.1.0/3", "FOO+5")
_FIXED = ("Etc/GMT+5", "Etc/GMT-14", "Etc/UTC", "UTC", "z", "gmt", "EST5EDT", "GB-Eire", "europe/berlin")
_MINUTES = (-121, -90, -61, -60, -59, -31, -30, -1, 0, 1, 29, 30, 59, 60, 61, 90, 120)
_COLUMNS = """
    inst AT TIME ZONE zone, wall AT TIME ZONE zone, date_trunc('hour', inst, zone), date_trunc('day', inst, zone),
    date_trunc('month', inst, zone), timezone(zone, (inst AT TIME ZONE zone))
"""


class Case:
    """Random rows of a moment, a local time and a zone."""

    def __init__(self, seed: int, database: PostgresDatabase) -> None:
        self.random = random.Random(seed)
        self.theirs = database.connect()
        self.theirs.execute("SET TimeZone = 'UTC'")
        named = "SELECT name FROM pg_timezone_names WHERE name !~ '^posix|^localtime$|^Factory$' ORDER BY name"
        short = "SELECT abbrev FROM pg_timezone_abbrevs ORDER BY abbrev"
        self.names, self.short = ([n for (n,) in self.theirs.execute(sql).fetchall()] for sql in (named, short))
        self.rows = [self._row(i) for i in range(_ROWS)]

    def _row(self, number: int) -> tuple[int, dt.datetime, dt.datetime, str]:
        r = self.random
        zone = r.choice(r.choices((self.names, self.short, _POSIX, _FIXED), (12, 4, 1, 2))[0])
        return (number, *self._moments(zone), zone)

    def _moments(self, zone: str) -> tuple[dt.datetime, dt.datetime]:
        """A moment and a local time, mostly near a change of the zone's offset.

        None is later than 2024: about the future, releases of the time zone database differ.
        """
        r = self.random
        if zone in self.names and r.random() < 0.7:
            changed = _change(zoneinfo.ZoneInfo(zone), r.randrange(1950, 2025))
            if changed is not None:
                moment, offset = changed
                return tuple(t + dt.timedelta(minutes=r.choice(_MINUTES)) for t in (moment, moment + offset))
        moment = dt.datetime(1880, 1, 1) + dt.timedelta(seconds=r.randrange(144 * 365 * 86400))
        return moment, moment


def _change(zone: zoneinfo.ZoneInfo, year: int) -> tuple[dt.datetime, dt.timedelta] | None:
    """The first change of offset in a year, in UTC, and the offset before it."""
    first = dt.datetime(year, 1, 1, tzinfo=dt.UTC)
    before = first.astimezone(zone).utcoffset()
    low = first
    for month in range(1, 13):
        high = first + dt.timedelta(days=30.4 * month)
        if high.astimezone(zone).utcoffset() != before:
            while high - low > dt.timedelta(seconds=1):
                middle = low + (high - low) / 2
                low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
            return (high + dt.timedelta(microseconds=500_000)).replace(microsecond=0, tzinfo=None), before
        low = high
    return None


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1))
def test_times_are_those_of_postgresql(seed: int, postgres: PostgresDatabase) -> None:
    case = Case(seed, postgres)
    with watersmeet.connect(runtime="inprocess") as ours:
        refused = _refused(ours, {zone for *_, zone in case.rows})
        assert not any(z in case.names or z.upper() in ABBREVIATIONS for z in refused - {"Factory"})
        known = [row for row in case.rows if row[3] not in refused]
        # abbreviations of hours and a half are known where they are written out
        in_columns = [row for row in known if ABBREVIATIONS.get(row[3].upper(), 0) % 3600 == 0]
        values = ", ".join(f"({i}, '{inst}+00', '{wall}', '{zone}')" for i, inst, wall, zone in in_columns)
        texts = ", ".join(f"({i}, '{wall} {zone}')" for i, _, wall, zone in known if is_zone_name(zone) or i % 2)
        for statement in (
            "CREATE TABLE t (id INT PRIMARY KEY, inst TIMESTAMPTZ, wall TIMESTAMP, zone VARCHAR)",
            "CREATE TABLE x (id INT PRIMARY KEY, moment VARCHAR)",
            f"INSERT INTO t VALUES {values}",
            f"INSERT INTO x VALUES {texts}, (-1, '2020-07-01 12:00:00'), (-2, '2020-07-01')",
        ):
            ours.execute(statement)
            case.theirs.execute(statement)
        queries = {
            "local": f"SELECT id, {_COLUMNS.strip()} FROM t",
            "keys": "SELECT CAST(inst AT TIME ZONE zone AS DATE) AS day, count(*) AS n FROM t GROUP BY 1",
            "written": "SELECT id, CAST(moment AS TIMESTAMPTZ) AS moment FROM x",
        }
        for name, sql in queries.items():
            named = sql.replace(_COLUMNS.strip(), ", ".join(f"{c} AS c{i}" for i, c in enumerate(_split(_COLUMNS))))
            ours.execute(f"CREATE MATERIALIZED VIEW {name} AS {named}")
            ours.execute("FLUSH")
            expected = Counter(case.theirs.execute(sql).fetchall())
            for mine in (sql, f"SELECT * FROM {name}"):
                found = Counter(ours.execute(mine).fetchall())
                assert found == expected, (mine, expected - found, found - expected)
        for i, inst, wall, zone in known[: _ROWS // 6]:  # written out, zones are read when a statement is bound
            sql = f"SELECT timestamptz '{inst}+00' AT TIME ZONE '{zone}', timestamp '{wall}' AT TIME ZONE '{zone}'"
            assert ours.execute(sql).fetchall() == case.theirs.execute(sql).fetchall(), (i, sql)


#: Zones of sessions: with summer time of an hour, of half an hour, and of the southern hemisphere; with offsets of
#: minutes; and one whose summer time has a negative length.
_SESSIONS = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Europe/Dublin")
_IN_SESSION = """
    inst::text, inst::timestamp, inst::date, inst::time, wall::timestamptz, (wall::date)::timestamptz,
    wall::text::timestamptz, date_trunc('hour', inst), date_trunc('day', inst), date_trunc('month', inst),
    date_trunc('week', inst), extract(hour FROM inst), extract(doy FROM inst), extract(timezone FROM inst),
    extract(timezone_minute FROM inst), inst + interval '1 day', inst - interval '1 month',
    inst + interval '1 month -3 days 5 hours', inst + iv, inst - iv, inst = wall, inst > wall,
    inst - wall, to_char(inst, 'YYYY-MM-DD HH24:MI:SS TZH:TZM'), age(inst, wall::timestamptz),
    to_jsonb(inst)::text, coalesce(inst, wall)
"""


@pytest.mark.parametrize("zone", mostly_slow(_SESSIONS, 2))
def test_sessions_compute_in_their_zone_as_postgresql_does(zone: str, postgres: PostgresDatabase) -> None:
    r = random.Random(zone)
    case = Case(1, postgres)
    case.names = [zone]  # moments near the changes of this zone
    columns = _split(_IN_SESSION)
    query = f"SELECT id, {', '.join(f'({c})::text AS c{i}' for i, c in enumerate(columns))} FROM t"
    values = ", ".join(
        f"({i}, '{inst}+00', '{wall}', '{r.choice((0, 0, 1, -1))} months {r.randrange(-3, 4)} days "
        f"{r.randrange(-200, 200)} minutes')"
        for i, (inst, wall) in enumerate(case._moments(zone) for _ in range(_ROWS))
    )
    with watersmeet.connect(runtime="inprocess") as ours:
        for statement in (
            f"SET timezone TO '{zone}'",
            "CREATE TABLE t (id INT PRIMARY KEY, inst TIMESTAMPTZ, wall TIMESTAMP, iv INTERVAL)",
            f"INSERT INTO t VALUES {values}",
            "INSERT INTO t SELECT id + 10000, wall, inst, iv FROM t",
        ):
            ours.execute(statement)
            case.theirs.execute(statement)
        ours.execute(f"CREATE MATERIALIZED VIEW v AS {query}")
        expected = sorted(case.theirs.execute(query).fetchall())
        for changed in ("", "UTC"):
            ours.execute("FLUSH")
            if changed:  # a view keeps the zone of its creation
                ours.execute(f"SET timezone TO '{changed}'")
            for text in (query, "SELECT * FROM v")[bool(changed) :]:
                found = sorted(ours.execute(text).fetchall())
                different = [
                    (mine[0], columns[i - 1], mine[i], their[i])
                    for mine, their in zip(found, expected, strict=True)
                    for i in range(1, len(mine))
                    if mine[i] != their[i]
                ]
                assert different == [], (text, different[:5])


@pytest.mark.parametrize("zone", mostly_slow((*_SESSIONS, "America/Sao_Paulo"), 2))
def test_series_step_by_local_days_and_months_as_postgresql_does(zone: str, postgres: PostgresDatabase) -> None:
    r = random.Random(zone)
    case = Case(2, postgres)
    case.names = [zone]
    rows = [case._moments(zone)[0] for _ in range(_ROWS)]
    with watersmeet.connect(runtime="inprocess") as ours:
        for connection in (ours, case.theirs):
            connection.execute(f"SET timezone TO '{zone}'")
            connection.execute("CREATE TABLE t (id INT PRIMARY KEY, inst TIMESTAMPTZ)")
            for i, inst in enumerate(rows):
                connection.execute(f"INSERT INTO t VALUES ({i}, '{inst}+00')")
        ours.execute("FLUSH")
        for number, step in enumerate(("1 day", "-1 day", "7 days", "1 month", "-2 months", "1 month 3 days")):
            sign = "-" if step.startswith("-") else "+"
            first = f"inst - interval '{r.randrange(1, 4)} {step.lstrip('-').split(' ')[1]}'" if sign == "+" else "inst"
            last = f"inst {sign} interval '{r.randrange(0, 100)} days {r.randrange(0, 48)} hours'"
            query = f"SELECT id, g::text AS g FROM t, generate_series({first}, {last}, interval '{step}') AS g"
            ours.execute(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
            expected = Counter(case.theirs.execute(query).fetchall())
            for text in (query, f"SELECT * FROM v{number}"):
                found = Counter(ours.execute(text).fetchall())
                assert found == expected, (query, sorted(expected - found)[:5], sorted(found - expected)[:5])


def _split(columns: str) -> list[str]:
    """The expressions of a list."""
    found, depth = [""], 0
    for char in columns.strip():
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return [f.strip() for f in found]


def _refused(connection: watersmeet.Connection, zones: set[str]) -> set[str]:
    """The zones that are not supported."""
    found = set()
    for zone in zones:
        try:
            connection.execute(f"SELECT timestamp '2020-01-01' AT TIME ZONE '{zone}'")
        except watersmeet.ProgrammingError as refusal:
            assert refusal.condition == "INVALID_PARAMETER", zone
            found.add(zone)
    return found
