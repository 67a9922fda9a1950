-- Nexmark q12, windows of processing time.
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM tumble(arriving_bid, p_time, INTERVAL '10' SECOND)
GROUP BY bidder, window_start, window_end
