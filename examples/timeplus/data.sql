-- A day of machines in three plants, by a rule: DuckDB writes readings and door events as INSERTs, in the order of time.
CREATE TABLE machines AS
SELECT 'm' || i AS id, ['north', 'south', 'harbor'][1 + i % 3] AS plant, ['press', 'lathe', 'oven'][1 + (hash(i) % 3)::INT] AS model,
    (60 + hash(i * 3) % 30)::DOUBLE AS limit_celsius
FROM range(40) AS r (i);

CREATE TABLE readings AS
SELECT i AS id, 'm' || (hash(i * 5) % 44) AS machine, (hash(i * 7) % 1000 / 10)::DOUBLE AS celsius,
    (hash(i * 11) % 5)::INT AS shift, TIMESTAMP '2026-03-02 00:00:00' + to_milliseconds(i * 7000 + (hash(i * 13) % 3000)::BIGINT) AS ts
FROM range(9000) AS r (i);

CREATE TABLE doors AS
SELECT i AS id, ['north', 'south', 'harbor'][1 + (hash(i * 17) % 3)::INT] AS plant,
    TIMESTAMP '2026-03-02 00:00:00' + to_seconds(i * 300 + (hash(i) % 200)::BIGINT) AS ts
FROM range(200) AS r (i);

COPY (SELECT * FROM (VALUES ('north', 'Oslo', 3), ('south', 'Lima', 2)) AS v (plant, city, shifts)) TO 'data/plants.csv' (HEADER);
CREATE TABLE plants AS SELECT * FROM (VALUES ('north', 'Oslo', 3), ('south', 'Lima', 2)) AS v (plant, city, shifts);

CREATE TABLE feed AS
SELECT 0 AS step, 'INSERT INTO factory.machines (id, plant, model, limit_celsius) VALUES '
    || string_agg(format('(''{}'', ''{}'', ''{}'', {})', id, plant, model, limit_celsius), ', ' ORDER BY id) || ';' AS line
FROM machines
UNION ALL SELECT 1, 'FLUSH;';
INSERT INTO feed
SELECT 2 + hour(ts) * 2, 'INSERT INTO factory.readings (id, machine, payload, shift, ts) VALUES '
    || string_agg(format('({}, ''{}'', ''{{"sensor":{{"celsius":{}}}}}'', {}, ''{}'')', id, machine, celsius, shift, strftime(ts, '%Y-%m-%d %H:%M:%S.%g')), ', ' ORDER BY ts) || ';'
FROM readings GROUP BY hour(ts);
INSERT INTO feed
SELECT 2 + hour(ts) * 2 + 1, 'INSERT INTO factory.doors (id, plant, ts) VALUES '
    || string_agg(format('({}, ''{}'', ''{}'')', id, plant, strftime(ts, '%Y-%m-%d %H:%M:%S.%g')), ', ' ORDER BY ts) || ';'
FROM doors GROUP BY hour(ts);
COPY (SELECT line FROM feed ORDER BY step) TO 'data/feed.sql' (FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER E'\t');
