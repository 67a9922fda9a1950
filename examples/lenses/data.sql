-- Parcels of a day and their scans, by a rule: DuckDB writes what would arrive in topics as INSERTs, in the order of time.
CREATE TABLE couriers AS
SELECT i AS id, 'courier ' || i AS name, ['bike', 'van', 'van', 'truck'][1 + i % 4] AS vehicle, i % 7 <> 3 AS active
FROM range(60) AS r (i);

CREATE TABLE parcels AS
SELECT 'P' || i AS id, (hash(i * 3) % 70)::INT AS courier, ['Oslo', 'Lima', 'Pune'][1 + (hash(i * 5) % 3)::INT] AS city,
    (100 + hash(i * 7) % 9000)::INT AS grams, ['glass', 'cold', 'gift'][1:(hash(i) % 4)::INT] AS tags,
    TIMESTAMP '2026-03-02 06:00:00' + to_seconds(i * 20) AS ts
FROM range(1200) AS r (i);

CREATE TABLE scans AS
SELECT p.id AS parcel, ['depot', 'road', 'door'][1 + step] AS place,
    p.ts + to_seconds(60 + step * 900 + (hash(p.id || step) % 600)::BIGINT) AS ts
FROM parcels p, range(3) AS steps (step)
WHERE hash(p.id || step || 'lost') % 20 > 0;

-- One INSERT for each hour of a topic.
CREATE TABLE feed AS
SELECT TIMESTAMP '2026-03-02 00:00:00' AS hour, 0 AS topic, 'INSERT INTO couriers (_key, id, profile.name, profile.vehicle, active, `@time`) VALUES '
    || string_agg(format('({0}, {0}, ''{1}'', ''{2}'', {3}, ''2026-03-02 00:00:00'')', id, name, vehicle, active), ', ' ORDER BY id) AS line
FROM couriers;
INSERT INTO feed
SELECT date_trunc('hour', ts) AS hour, 1, 'INSERT INTO parcels (_key, id, courier, city, grams, tags, `@time`) VALUES '
    || string_agg(format('(''{0}'', ''{0}'', {1}, ''{2}'', {3}, {4}, ''{5}'')', id, courier, city, grams,
        '[' || array_to_string([format('''{}''', t) FOR t IN tags], ', ') || ']', ts), ', ' ORDER BY ts)
FROM parcels GROUP BY hour;
INSERT INTO feed
SELECT date_trunc('hour', ts) AS hour, 2, 'INSERT INTO `courier-scans.v1` (_key, parcel, place, `@time`) VALUES '
    || string_agg(format('(''{0}'', ''{0}'', ''{1}'', ''{2}'')', parcel, place, ts), ', ' ORDER BY ts, parcel)
FROM scans GROUP BY hour;
COPY (SELECT line || ';' FROM feed ORDER BY hour, topic) TO 'data/feed.sql' (FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '');
