-- bikes.fares
SELECT t.id, s.city, ceil(date_diff('second', started, ended) / 60) AS minutes, p.per_minute,
    coalesce(round(ceil(date_diff('second', started, ended) / 60)::INT * p.per_minute, 2), 0) AS fare
FROM trips t JOIN stations s ON t.origin = s.id ASOF LEFT JOIN prices p ON s.city = p.city AND t.started >= p.ts;

-- bikes.revenue
SELECT city, count(*) AS trips, count(*) FILTER (WHERE fare = 0) AS free, sum(fare) AS total, max(minutes) AS longest
FROM (
    SELECT s.city, ceil(date_diff('second', started, ended) / 60) AS minutes, coalesce(round(minutes::INT * p.per_minute, 2), 0) AS fare
    FROM trips t JOIN stations s ON t.origin = s.id ASOF LEFT JOIN prices p ON s.city = p.city AND t.started >= p.ts
)
GROUP BY city;

-- bikes.hourly: hours that have ended by the watermark
SELECT date_trunc('hour', started) AS window_start, count(*) AS trips, count(DISTINCT bike) AS bikes
FROM trips
WHERE date_trunc('hour', started) + INTERVAL 1 HOUR <= (SELECT max(started) FROM trips) - INTERVAL 5 MINUTE
GROUP BY ALL;

-- bikes.busiest
SELECT city, name, departures, row_number() OVER (PARTITION BY city ORDER BY departures DESC, id) AS place
FROM (SELECT origin, count(*) AS departures FROM trips GROUP BY origin) d JOIN stations s ON s.id = d.origin
QUALIFY place <= 3;

-- bikes.balance
SELECT station, s.name, sum(n) AS change, s.capacity
FROM (SELECT destination AS station, 1 AS n FROM trips UNION ALL SELECT origin, -1 FROM trips) LEFT JOIN stations s ON s.id = station
GROUP BY ALL;

-- bikes.weathered
SELECT t.id, w.celsius
FROM trips t JOIN stations s ON t.origin = s.id
    JOIN weather w ON w.city = s.city AND t.started >= w.ts AND t.started < w.ts + INTERVAL 15 MINUTE;

-- bikes.idle_bikes
SELECT bike FROM range(450) AS b (bike) WHERE bike NOT IN (SELECT bike FROM trips);

-- bikes.long_trips
SELECT t.id, s.city, ceil(date_diff('second', started, ended) / 60) AS minutes
FROM trips t JOIN stations s ON t.origin = s.id
WHERE minutes > 80;
