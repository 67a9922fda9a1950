-- Nexmark q5, hot items: the auctions with the most bids of each hopping window.
SELECT ab.auction, ab.num
FROM (
    SELECT auction, count(*) AS num, window_start AS starttime
    FROM hop(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
    GROUP BY auction, window_start) AS ab
JOIN (
    SELECT max(cb.num) AS maxn, cb.starttime
    FROM (
        SELECT count(*) AS num, window_start AS starttime
        FROM hop(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
        GROUP BY auction, window_start) AS cb
    GROUP BY cb.starttime) AS mb ON ab.starttime = mb.starttime AND ab.num >= mb.maxn
