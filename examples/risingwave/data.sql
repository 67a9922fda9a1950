-- A week of a bike rental, by a rule: DuckDB writes trips and weather as files, and stations and prices as INSERTs.
CREATE TABLE stations AS
SELECT i AS id, 'station ' || i AS name, ['Oslo', 'Lima', 'Pune'][1 + i % 3] AS city, (10 + hash(i) % 30)::INT AS capacity
FROM range(60) AS r (i);

CREATE TABLE prices AS
SELECT city, TIMESTAMP '2026-03-02 00:00:00' + to_hours(7 * i) AS ts, ((10 + hash(city || i) % 25) / 100)::DECIMAL(10, 2) AS per_minute
FROM range(24) AS r (i), (VALUES ('Oslo'), ('Lima')) AS c (city);

CREATE TABLE trips AS
SELECT i AS id, (hash(i * 3) % 400)::INT AS bike, (hash(i * 5) % 60)::INT AS origin, (hash(i * 7) % 64)::INT AS destination,
    TIMESTAMP '2026-03-02 00:00:00' + to_seconds(i * 20 + (hash(i * 11) % 120)::BIGINT) AS started,
    started + to_seconds(120 + (hash(i * 13) % 5000)::BIGINT) AS ended
FROM range(20000) AS r (i);

CREATE TABLE weather AS
SELECT city, TIMESTAMP '2026-03-02 00:00:00' + to_minutes(15 * i) AS ts, (hash(city || i) % 350 / 10 - 5)::DOUBLE AS celsius
FROM range(460) AS r (i), (VALUES ('Oslo'), ('Lima'), ('Pune')) AS c (city);

COPY (SELECT * FROM trips WHERE id < 9000 ORDER BY id) TO 'data/trips-1.csv' (HEADER);
COPY (SELECT * FROM trips WHERE id >= 9000 ORDER BY id) TO 'data/trips-2.csv' (HEADER);
COPY (SELECT * FROM weather ORDER BY ts) TO 'data/weather-1.json';
COPY (
    SELECT 'INSERT INTO bikes.stations (id, name, city, capacity) VALUES '
        || string_agg(format('({}, ''{}'', ''{}'', {})', id, name, city, capacity), ', ') || ';' FROM stations
    UNION ALL
    SELECT 'INSERT INTO bikes.prices VALUES ' || string_agg(format('(''{}'', ''{}'', {})', city, ts, per_minute), ', ') || ';'
    FROM prices
    UNION ALL
    SELECT 'UPDATE bikes.stations SET capacity = capacity + 5 WHERE city = ''Oslo'';'
    UNION ALL
    SELECT 'DELETE FROM bikes.stations WHERE id = 59;'
) TO 'data/feed.sql' (FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER E'\t');
UPDATE stations SET capacity = capacity + 5 WHERE city = 'Oslo';
DELETE FROM stations WHERE id = 59;
