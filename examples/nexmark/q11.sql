-- Nexmark q11, user sessions: bids of each session of a bidder.
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM session(bid, date_time, INTERVAL '10' SECOND)
GROUP BY bidder, window_start, window_end
