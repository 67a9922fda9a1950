-- dialect: risingwave
-- A bike rental: what each trip costs, how full stations are, which are the busiest, and how the weather counts.
SET timezone = 'UTC';
SET streaming_parallelism = 4;
SET background_ddl = true;
SET rw_implicit_flush = true;

CREATE SCHEMA IF NOT EXISTS bikes;
SET search_path TO bikes, public;

-- What is known of stations, and the prices of each city from a time on.
CREATE TABLE stations (
    id int PRIMARY KEY,
    name varchar NOT NULL,
    city varchar,
    capacity int DEFAULT 10,
    changed_at timestamptz DEFAULT now()
) ON CONFLICT OVERWRITE;
COMMENT ON TABLE stations IS 'docks, by their number';
COMMENT ON COLUMN stations.capacity IS 'bikes that fit';

CREATE TABLE prices (city varchar, ts timestamp, per_minute numeric) APPEND ONLY;

-- What arrives.
CREATE SOURCE trips (
    id bigint,
    bike int,
    origin int,
    destination int,
    started timestamp,
    ended timestamp,
    WATERMARK FOR started AS started - INTERVAL '5 minutes'
) WITH (
    connector = 'posix_fs',
    posix_fs.root = 'data',
    match_pattern = 'trips-*.csv'
) FORMAT PLAIN ENCODE CSV (without_header = 'false', delimiter = ',');

CREATE SOURCE weather (
    city varchar,
    ts timestamp,
    celsius double precision,
    WATERMARK FOR ts AS ts - INTERVAL '5 minutes'
) WITH (
    connector = 'posix_fs',
    posix_fs.root = 'data',
    match_pattern = 'weather-*.json'
) FORMAT PLAIN ENCODE JSON;

CREATE FUNCTION minutes_between(begun timestamp, done timestamp) RETURNS numeric
LANGUAGE sql AS $$ SELECT ceil(extract(epoch FROM done - begun) / 60) $$;

CREATE VIEW city_trips AS
SELECT t.id, t.bike, t.origin, t.destination, t.started, t.ended, s.city, minutes_between(t.started, t.ended) AS minutes
FROM trips t JOIN stations s ON t.origin = s.id;

-- The price that was valid when a trip began; Pune is free.
CREATE MATERIALIZED VIEW fares AS
SELECT c.id, c.city, c.minutes, p.per_minute, coalesce(round(c.minutes * p.per_minute, 2), 0) AS fare
FROM city_trips c ASOF LEFT JOIN prices p ON c.city = p.city AND c.started >= p.ts;

CREATE MATERIALIZED VIEW revenue AS
SELECT city, count(*) AS trips, count(*) FILTER (WHERE fare = 0) AS free, sum(fare) AS total, max(minutes) AS longest
FROM fares
GROUP BY city;

-- Departures of each hour, once that hour is over.
CREATE MATERIALIZED VIEW hourly AS
SELECT window_start, count(*) AS trips, count(DISTINCT bike) AS bikes
FROM TUMBLE(trips, started, INTERVAL '1 hour')
GROUP BY window_start
EMIT ON WINDOW CLOSE;

-- The three busiest stations of each city.
CREATE MATERIALIZED VIEW busiest AS
SELECT city, name, departures, place
FROM (
    SELECT s.city, s.name, d.departures,
        row_number() OVER (PARTITION BY s.city ORDER BY d.departures DESC, s.id) AS place
    FROM (SELECT origin, count(*) AS departures FROM trips GROUP BY origin) AS d
    JOIN stations s ON s.id = d.origin
) AS ranked
WHERE place <= 3;

-- What came and went; some bikes are left where there is no station.
CREATE MATERIALIZED VIEW balance AS
WITH came AS (SELECT destination AS station, count(*) AS n FROM trips GROUP BY destination),
    went AS (SELECT origin AS station, count(*) AS n FROM trips GROUP BY origin)
SELECT coalesce(came.station, went.station) AS station, s.name, coalesce(came.n, 0) - coalesce(went.n, 0) AS change, s.capacity
FROM came FULL OUTER JOIN went ON came.station = went.station
    LEFT JOIN stations s ON s.id = coalesce(came.station, went.station);

-- The weather of the quarter of an hour before a trip began.
CREATE MATERIALIZED VIEW weathered AS
SELECT t.id, w.celsius
FROM city_trips t JOIN weather w
    ON t.city = w.city AND t.started >= w.ts AND t.started < w.ts + INTERVAL '15 minutes';

CREATE MATERIALIZED VIEW idle_bikes AS
SELECT b.bike FROM generate_series(0, 449) AS b (bike) WHERE NOT EXISTS (SELECT 1 FROM trips t WHERE t.bike = b.bike);

CREATE INDEX fares_by_city ON fares (city);

-- A table for the office, and a file for the accountants.
CREATE TABLE long_trips (id bigint PRIMARY KEY, city varchar, minutes numeric);
CREATE SINK long_trips_sink INTO long_trips AS SELECT id, city, minutes FROM fares WHERE minutes > 80;
CREATE SINK free_trips FROM revenue WITH (connector = 'blackhole', type = 'upsert', primary_key = 'city');

CREATE USER office WITH PASSWORD 'bikes';
GRANT USAGE ON SCHEMA bikes TO office;
GRANT SELECT ON MATERIALIZED VIEW revenue, busiest TO office;
ALTER MATERIALIZED VIEW busiest SET PARALLELISM = 2;
ALTER TABLE stations ADD COLUMN note varchar DEFAULT 'none';

SHOW MATERIALIZED VIEWS FROM bikes;
DESCRIBE stations;
SHOW CREATE MATERIALIZED VIEW revenue;
