-- Nexmark q6, average selling price by seller: of the last ten auctions that each closed.
SELECT q.seller, avg(q.final) OVER (
    PARTITION BY q.seller ORDER BY q.date_time, q.id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS avg
FROM (
    SELECT a.id, a.seller, b.price AS final, b.date_time,
        row_number() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.date_time, b.bidder) AS rownum
    FROM auction AS a, bid AS b
    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) AS q
WHERE q.rownum <= 1
