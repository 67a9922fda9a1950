-- cards.rated_results: an hour of the card's authorizations, the end included
SELECT id, card, merchant, spent, times,
    CASE WHEN spent > 1500 OR times > 6 THEN 'high' WHEN spent > 900 THEN 'medium' ELSE 'low' END AS risk
FROM (
    SELECT id, card, merchant, sum(amount) OVER w AS spent, count(*) OVER w AS times
    FROM authorizations
    WINDOW w AS (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW)
);

-- cards.change_results
SELECT id, card, amount, lag(amount) OVER (PARTITION BY card ORDER BY ts) AS "before" FROM authorizations;

-- cards.settled_results: each authorization at once, and again with each settlement within ten minutes, as far as both clocks are
WITH clock AS (SELECT least((SELECT max(ts) FROM authorizations), (SELECT max(ts) FROM settlements)) AS reached)
SELECT id, amount, NULL AS paid FROM authorizations, clock WHERE ts < reached
UNION ALL
SELECT a.id, a.amount, s.paid
FROM authorizations a JOIN settlements s ON a.id = s.id AND s.ts BETWEEN a.ts AND a.ts + INTERVAL 10 MINUTE, clock
WHERE s.ts <= reached;

-- cards.hourly_results: hours that have ended
SELECT date_trunc('hour', ts) AS "hour", ['Oslo', 'Lima', 'Pune', 'Kyiv', 'Bonn'][1 + merchant % 5] AS city,
    count(*) AS authorizations, sum(amount) AS total
FROM authorizations
WHERE date_trunc('hour', ts) < (SELECT date_trunc('hour', max(ts)) FROM authorizations)
GROUP BY ALL;

-- read_csv('alerts/*.csv')
SELECT id, card, 'HIGH: Spent ' || spent AS reason
FROM (
    SELECT id, card, sum(amount) OVER w AS spent, count(*) OVER w AS times
    FROM authorizations
    WINDOW w AS (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW)
)
WHERE spent > 1500 OR times > 6;
