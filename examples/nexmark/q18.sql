-- Nexmark q18, last bid of a bidder at an auction. What follows date_time makes the order total.
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price, channel, extra) AS rank_number
    FROM bid) AS q
WHERE rank_number <= 1
