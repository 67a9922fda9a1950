-- factory.hot
SELECT r.id, machine, model, celsius, round(celsius - limit_celsius, 1) AS "over"
FROM readings r JOIN machines m ON r.machine = m.id WHERE celsius > limit_celsius;

-- factory.five_minutes: those that have ended
SELECT time_bucket(INTERVAL 5 MINUTE, ts) AS window_start, machine, count(*) AS readings, max(celsius) AS hottest
FROM readings
WHERE time_bucket(INTERVAL 5 MINUTE, ts) + INTERVAL 5 MINUTE <= (SELECT max(ts) FROM readings)
GROUP BY ALL;

-- factory.machine_state
SELECT machine, count(*) AS readings, min(celsius) AS coldest, max(celsius) AS hottest FROM readings GROUP BY machine;

-- factory.drafts
SELECT r.id AS reading, d.id AS door, round(celsius * 9 / 5 + 32, 2) AS degrees
FROM readings r JOIN machines m ON r.machine = m.id
    JOIN doors d ON m.plant = d.plant AND r.ts BETWEEN d.ts - INTERVAL 30 SECOND AND d.ts + INTERVAL 30 SECOND;

-- factory.by_city
SELECT coalesce(city, '') AS city, count(*) AS readings, count(*) FILTER (WHERE celsius > 90) AS glowing, round(sum(celsius), 1) AS total
FROM readings r JOIN machines m ON r.machine = m.id LEFT JOIN plants p ON p.plant = m.plant
GROUP BY ALL;

-- factory.changes
SELECT id, machine, CASE WHEN coalesce(before, 0) = 0 THEN 'first' WHEN celsius > before THEN 'hotter' ELSE 'colder' END AS trend
FROM (SELECT *, lag(celsius) OVER (PARTITION BY machine ORDER BY ts, id) AS before FROM readings);
