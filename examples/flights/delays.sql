-- Flights out of New York in 2013 and the weather there, as four streams of events in directories of CSV files.
-- An event becomes known up to 30 minutes after its time: what each WATERMARK allows for, so no row is too late.

-- The board: every flight, also the ones that were cancelled (dep_delay is NULL then).
CREATE SOURCE flights (
    flight_id bigint, scheduled timestamptz, carrier varchar, flight int, tailnum varchar, origin varchar, dest varchar,
    dep_delay int,
    WATERMARK FOR scheduled AS scheduled - INTERVAL '30 minutes'
) WITH (connector = 'file', path = '{folder}/flights', format = 'csv');

CREATE SOURCE departures (
    flight_id bigint, departed timestamptz, tailnum varchar, origin varchar, dest varchar, dep_delay int,
    WATERMARK FOR departed AS departed - INTERVAL '30 minutes'
) WITH (connector = 'file', path = '{folder}/departures', format = 'csv');

CREATE SOURCE arrivals (
    flight_id bigint, arrived timestamptz, tailnum varchar, origin varchar, dest varchar, arr_delay int,
    WATERMARK FOR arrived AS arrived - INTERVAL '30 minutes'
) WITH (connector = 'file', path = '{folder}/arrivals', format = 'csv');

-- What each of the three airports measures, about every hour; some hours are missing, and so is the last day of the year.
CREATE SOURCE weather (
    origin varchar, observed timestamptz, temp double precision, wind_dir int, wind_speed double precision,
    wind_gust double precision, precip double precision, visib double precision,
    WATERMARK FOR observed AS observed - INTERVAL '30 minutes'
) WITH (connector = 'file', path = '{folder}/weather', format = 'csv');

-- ASOF: each flight with the newest report of its airport at its scheduled time. Reports that come late take over.
-- A report older than three hours says nothing, and one of 1,048 miles an hour is a mistake: the wind is unknown then.
CREATE MATERIALIZED VIEW flight_weather AS
SELECT f.flight_id, f.scheduled, f.origin, f.dest, f.carrier, f.dep_delay, w.observed, w.visib, w.precip,
       CASE WHEN f.scheduled - w.observed <= INTERVAL '3 hours' AND w.wind_speed < 100
            THEN CAST(round(w.wind_speed / 1.15078) AS int) END AS wind_knots
FROM flights f ASOF LEFT JOIN weather w ON f.origin = w.origin AND f.scheduled >= w.observed;

CREATE MATERIALIZED VIEW delay_by_wind AS
SELECT origin, CASE WHEN wind_knots >= 30 THEN 30 ELSE wind_knots / 5 * 5 END AS knots, count(*) AS flights, count(dep_delay) AS departed,
       sum(dep_delay) AS minutes, count(*) FILTER (WHERE dep_delay > 60) AS over_an_hour
FROM flight_weather
GROUP BY 1, 2;

-- Interval join: a plane that has landed somewhere, and its departures from New York within eight hours after that
-- (two, if it came and went in between). What is not known of a plane's tail number has no partner.
CREATE MATERIALIZED VIEW turnarounds AS
SELECT a.flight_id, a.tailnum, a.dest, a.arrived, a.arr_delay, d.flight_id AS next_flight, d.departed, d.dep_delay
FROM arrivals a LEFT JOIN departures d
  ON a.tailnum = d.tailnum AND d.departed BETWEEN a.arrived AND a.arrived + INTERVAL '8 hours';

CREATE MATERIALIZED VIEW knock_on AS
SELECT CASE WHEN arr_delay <= 0 THEN 1 WHEN arr_delay <= 30 THEN 2 WHEN arr_delay <= 120 THEN 3 ELSE 4 END AS class,
       count(*) FILTER (WHERE next_flight IS NULL) AS not_back, count(next_flight) AS departures, sum(dep_delay) AS minutes
FROM turnarounds
GROUP BY 1;

-- Window join: how many planes left each airport in an hour, and how many that came from it landed elsewhere in that hour.
CREATE MATERIALIZED VIEW traffic AS
SELECT coalesce(d.origin, a.origin) AS origin, coalesce(d.window_start, a.window_start) AS hour,
       coalesce(d.planes, 0) AS departures, coalesce(a.planes, 0) AS landings, d.minutes, a.minutes AS landing_minutes
FROM (SELECT origin, window_start, count(*) AS planes, sum(dep_delay) AS minutes
      FROM TUMBLE(departures, departed, INTERVAL '1 hour') GROUP BY origin, window_start) d
FULL JOIN (SELECT origin, window_start, count(*) AS planes, sum(arr_delay) AS minutes
           FROM TUMBLE(arrivals, arrived, INTERVAL '1 hour') GROUP BY origin, window_start) a
  ON d.origin = a.origin AND d.window_start = a.window_start;

-- The same of departures alone, each hour once and final: when the watermark has passed it.
CREATE MATERIALIZED VIEW closed_hours AS
SELECT origin, window_start AS hour, count(*) AS departures, sum(dep_delay) AS minutes, max(dep_delay) AS worst
FROM TUMBLE(departures, departed, INTERVAL '1 hour')
GROUP BY origin, window_start
EMIT ON WINDOW CLOSE;
