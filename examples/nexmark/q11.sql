-- Nexmark q11, user sessions: bids of each session of a bidder.
SELECT bidder, count(*) AS bid_count, starttime, max(date_time) + INTERVAL '10' SECOND AS endtime
FROM (
    SELECT bidder, date_time, first_value(date_time) OVER
        (PARTITION BY bidder ORDER BY date_time SESSION WITH GAP INTERVAL '10' SECOND) AS starttime
    FROM bid) AS q
GROUP BY bidder, starttime
