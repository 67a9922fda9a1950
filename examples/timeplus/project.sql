-- dialect: timeplus
-- Machines in three plants: which are too hot, how each five minutes went, and which readings follow an open door.
CREATE DATABASE IF NOT EXISTS factory COMMENT 'readings of machines';
USE factory;

-- What is known of machines, by version; and the plants, from a file.
CREATE STREAM IF NOT EXISTS machines (
    id string,
    plant low_cardinality(string),
    model enum8('press' = 1, 'lathe' = 2, 'oven' = 3),
    limit_celsius float64
) PRIMARY KEY id SETTINGS mode = 'versioned_kv', version_column = '_tp_time';

CREATE DICTIONARY plants (plant string, city string, shifts uint8)
PRIMARY KEY plant
SOURCE(FILE(path 'data/plants.csv' format 'CSVWithNames'))
LAYOUT(HASHED())
LIFETIME(MIN 0 MAX 0);

-- What arrives.
CREATE STREAM IF NOT EXISTS readings (
    id int64 CODEC(Delta, ZSTD(1)),
    machine string,
    payload string,
    shift nullable(int8),
    celsius float64 MATERIALIZED to_float64_or_zero(json_extract_raw(json_extract_raw(payload, 'sensor'), 'celsius')),
    ts datetime64(3, 'UTC'),
    INDEX by_machine machine TYPE minmax GRANULARITY 2
)
PARTITION BY to_YYYYMM(ts)
ORDER BY (machine, ts)
TTL to_datetime(ts) + INTERVAL 30 DAY
SETTINGS event_time_column = 'ts', logstore_retention_bytes = 10737418240, logstore_retention_ms = 86400000;

CREATE STREAM doors (id int64, plant string, ts datetime64(3, 'UTC')) SETTINGS event_time_column = 'ts';

-- Where the results go.
CREATE STREAM hot (id int64, machine string, model string, celsius float64, over float64);
CREATE STREAM five_minutes (window_start datetime64(3, 'UTC'), machine string, readings uint64, hottest float64);
CREATE MUTABLE STREAM machine_state (machine string, readings uint64, coldest float64, hottest float64) PRIMARY KEY machine;

CREATE FUNCTION fahrenheit AS (celsius) -> round(celsius * 9 / 5 + 32, 2);

CREATE VIEW known_readings AS
SELECT r.id AS id, r.machine AS machine, r.celsius AS celsius, r.ts AS ts, m.plant AS plant, m.model AS model,
    m.limit_celsius AS limit_celsius
FROM readings AS r INNER JOIN machines AS m ON r.machine = m.id;

-- Too hot for that machine.
CREATE MATERIALIZED VIEW hot_mv INTO hot AS
SELECT id, machine, to_string(model) AS model, celsius, round(celsius - limit_celsius, 1) AS over
FROM known_readings
WHERE celsius > limit_celsius;

-- Each five minutes of a machine, once they are over.
CREATE MATERIALIZED VIEW five_minutes_mv INTO five_minutes AS
SELECT window_start, machine, count() AS readings, max(celsius) AS hottest
FROM tumble(readings, ts, 5m)
GROUP BY window_start, machine;

-- The newest state of each machine.
CREATE MATERIALIZED VIEW machine_state_mv INTO machine_state AS
SELECT machine, count() AS readings, min(celsius) AS coldest, max(celsius) AS hottest
FROM readings
GROUP BY machine
EMIT PERIODIC 1s;

-- Readings within half a minute of a door event in the same plant.
CREATE MATERIALIZED VIEW drafts AS
SELECT k.id AS reading, d.id AS door, fahrenheit(k.celsius) AS degrees
FROM known_readings AS k INNER JOIN doors AS d
    ON k.plant = d.plant AND date_diff_within(30s, k.ts, d.ts)
SETTINGS max_memory_usage = 8589934592;

-- The city of a plant; the harbor is in no file.
CREATE MATERIALIZED VIEW by_city AS
SELECT dict_get('plants', 'city', plant) AS city, count() AS readings, count_if(celsius > 90) AS glowing, round(sum(celsius), 1) AS total
FROM known_readings
GROUP BY city;

-- By how much a machine became hotter since its last reading.
CREATE MATERIALIZED VIEW changes AS
SELECT id, machine, multi_if(before = 0, 'first', celsius > before, 'hotter', 'colder') AS trend
FROM (SELECT id, machine, celsius, lag(celsius) AS before FROM readings PARTITION BY machine);

ALTER STREAM hot MODIFY TTL to_datetime(_tp_time) + INTERVAL 7 DAY;
ALTER STREAM hot MODIFY COMMENT 'readings above the limit of their machine';
SHOW STREAMS;
DESCRIBE readings;
SHOW CREATE machines;
