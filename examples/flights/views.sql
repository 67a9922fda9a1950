-- Flights out of New York in 2013, as a stream of files; three tables that change meanwhile.

CREATE TABLE airlines (carrier varchar PRIMARY KEY, name varchar NOT NULL);

CREATE TABLE airports (faa varchar PRIMARY KEY, name varchar, lat double precision, lon double precision, alt int);

CREATE TABLE planes (
    tailnum varchar PRIMARY KEY, year int, type varchar, manufacturer varchar, model varchar,
    engines int, seats int, engine varchar
);

CREATE SOURCE flights (
    flight_id bigint, time_hour timestamp, carrier varchar, flight int, tailnum varchar,
    origin varchar, dest varchar, dep_delay int, arr_delay int, air_time int, distance int
) WITH (connector = 'file', path = '{flights}', format = 'json');

-- Every flight with what is known of its airline, plane and destination: a change of a table corrects old rows too.
CREATE MATERIALIZED VIEW flight_details AS
SELECT f.flight_id, f.time_hour, f.carrier, a.name AS airline, f.flight, f.tailnum,
       p.manufacturer, p.model, p.seats, f.origin, f.dest, d.name AS destination,
       f.dep_delay, f.arr_delay, f.distance
FROM flights f
JOIN airlines a ON f.carrier = a.carrier
LEFT JOIN planes p ON f.tailnum = p.tailnum
LEFT JOIN airports d ON f.dest = d.faa;

-- On top of it: how each airline does.
CREATE MATERIALIZED VIEW airline_report AS
SELECT airline, count(*) AS flights, count(seats) AS with_known_plane, sum(seats) AS seats,
       avg(arr_delay) AS mean_arrival_delay, max(arr_delay) AS worst_delay
FROM flight_details
GROUP BY airline;

-- Planes that we know but that have not flown yet, and flights whose plane nobody knows.
CREATE MATERIALIZED VIEW idle_planes AS
SELECT tailnum, manufacturer, model FROM planes p
WHERE NOT EXISTS (SELECT 1 FROM flights f WHERE f.tailnum = p.tailnum);

CREATE MATERIALIZED VIEW unknown_planes AS
SELECT tailnum, count(*) AS flights FROM flight_details
WHERE manufacturer IS NULL AND tailnum IS NOT NULL
GROUP BY tailnum;
