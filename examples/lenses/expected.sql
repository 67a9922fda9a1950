-- "active-couriers"
SELECT id, name, upper(vehicle) AS vehicle FROM couriers WHERE active;

-- "prompt-scans": half an hour in both directions
SELECT p.id, p.city, s.place
FROM parcels p JOIN scans s ON p.id = s.parcel AND s.ts BETWEEN p.ts - INTERVAL 30 MINUTE AND p.ts + INTERVAL 30 MINUTE;

-- tagged
SELECT id, city || '/' || unnest(tags) AS label FROM parcels;

-- notices
SELECT id, 'cold' AS reason FROM parcels WHERE 'cold' IN tags
UNION ALL
SELECT id, 'heavy' FROM parcels WHERE grams BETWEEN 8500 AND 20000 AND city IN ('Oslo', 'Pune');

-- carried
SELECT {'id': p.id, 'city': p.city, 'grams': p.grams} AS parcel, {'name': coalesce(c.name, 'nobody')} AS courier,
    CASE WHEN c.name IS NULL THEN 'not carried' WHEN grams > 5000 AND vehicle = 'bike' THEN 'too heavy' ELSE 'fine' END AS state
FROM parcels p LEFT JOIN couriers c ON p.courier = c.id AND c.active;

-- (SELECT DISTINCT ON (_key) * FROM hourly ORDER BY _key, parcels DESC) AS hourly
SELECT city, count(*) AS parcels, sum(grams) AS grams, list_sort(list(grams), 'DESC')[:3] AS heaviest
FROM parcels GROUP BY city, date_trunc('hour', ts);

-- (SELECT DISTINCT ON (_key) * FROM places ORDER BY _key, scans DESC) AS places
SELECT place, count(*) AS scans
FROM (
    SELECT place, unnest([time_bucket(INTERVAL 15 MINUTE, ts), time_bucket(INTERVAL 15 MINUTE, ts) - INTERVAL 15 MINUTE]) AS began
    FROM scans
)
GROUP BY place, began;

-- (SELECT DISTINCT ON (_key) * FROM loads ORDER BY _key, parcels DESC) AS loads
SELECT courier, count(*) AS parcels, sum(grams) AS grams FROM parcels GROUP BY courier;

-- (SELECT DISTINCT ON (_key) * FROM ways ORDER BY _key, scans DESC) AS ways
SELECT parcel, count(*) AS scans, list(place ORDER BY ts) AS places
FROM (
    SELECT *, count(*) FILTER (WHERE gap IS NULL OR gap > INTERVAL 20 MINUTE) OVER (PARTITION BY parcel ORDER BY ts) AS number
    FROM (SELECT *, ts - lag(ts) OVER (PARTITION BY parcel ORDER BY ts) AS gap FROM scans)
)
GROUP BY parcel, number;
