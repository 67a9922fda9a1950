-- dialect: lenses
-- Parcels, the scans of their way, and couriers: who carries what, what is late, and how busy each hour was.
SET defaults.topic.autocreate = true;
SET defaults.topic.partitions = 4;
SET streams.num.stream.threads = 2;
SET streams.commit.interval.ms = 5000;
SET streams.cache.max.bytes.buffering = 10485760;
SET rocksdb.table.block.cache.size = 16777216;
SET error.policy = 'CONTINUE';

CREATE TABLE couriers (_key int, id int, profile.name string, profile.vehicle string, active boolean)
FORMAT (INT, AVRO) PROPERTIES (partitions=4, compacted=true);

CREATE TABLE parcels (_key string, id string, courier int, city string, grams int, tags string[])
FORMAT (STRING, AVRO);

CREATE TABLE courier-scans.v1 (_key string, parcel string, place string)
FORMAT (STRING, JSON);

-- Couriers that work now, with flat names.
INSERT INTO active-couriers
SELECT TABLE _key, id, profile.name AS name, UPPER(profile.vehicle) AS vehicle
FROM couriers
WHERE active = true;

-- Each parcel with its courier at that time, a nested record again, by the courier's id.
WITH parcelsByCourier AS (SELECT STREAM courier AS _key, id, courier, city, grams FROM parcels);
WITH couriersNow AS (SELECT TABLE id, name, vehicle FROM active-couriers);

INSERT INTO carried
SELECT STREAM
    p.id AS parcel.id,
    p.city AS parcel.city,
    p.grams AS parcel.grams,
    COALESCE(c.name, 'nobody') AS courier.name,
    CASE
        WHEN c.name IS NULL THEN 'not carried'
        WHEN p.grams > 5000 AND c.vehicle = 'BIKE' THEN 'too heavy'
        ELSE 'fine'
    END AS state
FROM parcelsByCourier AS p
    LEFT JOIN couriersNow AS c ON p.courier = c.id;

-- Parcels that were scanned within half an hour.
INSERT INTO prompt-scans
SELECT STREAM p.id, p.city, s.place
FROM parcels AS p
    INNER JOIN courier-scans.v1 AS s ON p.id = s.parcel
    WITHIN 30m;

-- One record for each tag.
INSERT INTO tagged
SELECT STREAM id, CONCAT(city, '/', tag) AS label
FROM parcels LATERAL tags AS tag;

-- How busy each hour of a city was, and a quarter of an hour of each place.
INSERT INTO hourly
SELECT STREAM city, COUNT(*) AS parcels, SUM(grams) AS grams, MAXK(grams, 3) AS heaviest
FROM parcels
WINDOW BY TUMBLE 1h
GROUP BY city;

INSERT INTO places
SELECT STREAM place, COUNT(*) AS scans
FROM courier-scans.v1
WINDOW BY HOP 30m, 15m
GROUP BY place;

-- The way of each parcel, as long as its scans follow one another within twenty minutes.
INSERT INTO ways
SELECT STREAM parcel, COUNT(*) AS scans, COLLECT(place) AS places
FROM courier-scans.v1
WINDOW BY SESSION 20m
GROUP BY parcel;

-- Current totals of each courier.
INSERT INTO loads
SELECT TABLE courier, COUNT(*) AS parcels, SUM(grams) AS grams
FROM parcels
GROUP BY courier;

-- Two processors that write one topic.
INSERT INTO notices
SELECT STREAM id, 'cold' AS reason FROM parcels WHERE tags IS NOT NULL AND IN_ARRAY('cold', tags);

INSERT INTO notices
SELECT STREAM id, 'heavy' AS reason FROM parcels WHERE grams BETWEEN 8500 AND 20000 AND city IN ('Oslo', 'Pune');
