-- Nexmark q9, winning bids: the highest while the auction was open, the first of equal ones.
SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, auction, bidder, price,
    bid_date_time
FROM (
    SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC, b.bidder) AS rownum
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) AS q
WHERE rownum <= 1
