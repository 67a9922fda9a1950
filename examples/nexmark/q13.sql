-- Nexmark q13, bounded side input, joined as of processing time.
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid b JOIN side_input FOR SYSTEM_TIME AS OF PROCTIME() s ON mod(b.auction, 10000) = s.key
