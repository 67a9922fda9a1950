-- Nexmark q19, the ten highest bids of an auction. What follows price makes the order total.
SELECT *
FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder, channel, extra) AS rank_number
    FROM bid) AS q
WHERE rank_number <= 10
