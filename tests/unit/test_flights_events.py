"""The second demo's streams: instants from clocks in several zones, also around the change to and from summer time."""

from __future__ import annotations

import csv
import importlib
import sys
from datetime import datetime
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it reads all flights of a year
EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"


@pytest.fixture(scope="module")
def events():
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield importlib.import_module("events")
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def data(events):
    return events.open_events()


def one(data, sql):
    return data.execute(sql).fetchall()


def test_every_flight_is_on_the_board_and_only_those_that_left_or_landed_are_elsewhere(data):
    counts = [
        one(data, f"SELECT count(*), count(DISTINCT flight_id) FROM {name}")[0]
        for name in ("flights", "departures", "arrivals")
    ]
    assert counts == [(336_776, 336_776), (328_521, 328_521), (327_346, 327_346)]
    assert one(
        data, "SELECT count(*) FROM departures JOIN flights USING (flight_id) WHERE flights.dep_delay IS NULL"
    ) == [(0,)]


@pytest.mark.parametrize(
    ("day", "first"),
    [
        ("2013-03-09", datetime(2013, 3, 9, 10, 0)),  # 05:00 in New York, winter time
        ("2013-03-10", datetime(2013, 3, 10, 9, 0)),  # 05:00, summer time since three hours
        ("2013-11-02", datetime(2013, 11, 2, 9, 0)),  # 05:00, summer time
        ("2013-11-03", datetime(2013, 11, 3, 10, 20)),  # 05:20, winter time again
    ],
)
def test_scheduled_times_are_instants_also_when_summer_time_begins_and_ends(data, day, first):
    assert one(
        data,
        f"""SELECT min(scheduled) AT TIME ZONE 'UTC' FROM flights
                         WHERE CAST(scheduled AT TIME ZONE 'America/New_York' AS DATE) = '{day}'""",
    ) == [(first,)]


def test_arrivals_are_instants_whatever_the_zone_of_the_destination(data):
    """UA 1545 to Houston (an hour behind New York) on the first of January lands at 08:30 there."""
    assert one(data, "SELECT dest, arrived AT TIME ZONE 'UTC' FROM arrivals WHERE flight_id = 1") == [
        ("IAH", datetime(2013, 1, 1, 14, 30))
    ]
    # Honolulu has no summer time: New York is five hours ahead in January, six in July
    assert one(
        data,
        """SELECT DISTINCT date_diff('minute', departed, arrived) BETWEEN 560 AND 740
                        FROM arrivals JOIN departures USING (flight_id) WHERE arrivals.dest = 'HNL'""",
    ) == [(True,)]


def test_events_become_known_out_of_order_but_never_later_than_the_watermark_allows(events, data, tmp_path):
    script = (EXAMPLE / "delays.sql").read_text(encoding="utf-8")
    for name, (time, _) in events.STREAMS.items():
        assert f"WATERMARK FOR {time} AS {time} - INTERVAL '{events.DELAY_MINUTES} minutes'" in script
        (tmp_path / name).mkdir()
    events.write_day(data, tmp_path, 40)
    for name, (time, _) in events.STREAMS.items():
        with (tmp_path / name / "day-040.csv").open() as file:
            times = [datetime.fromisoformat(row[time]) for row in csv.DictReader(file)]
        behind = [(max(times[:n]) - times[n]).total_seconds() for n in range(1, len(times))]
        assert max(behind) <= 60 * events.DELAY_MINUTES
        assert max(behind) > 0 or name == "weather"  # which is measured every hour, at all places at once
