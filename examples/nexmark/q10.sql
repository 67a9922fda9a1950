-- Nexmark q10, log to files; here the rows with the names of the files.
SELECT auction, bidder, price, date_time, to_char(date_time, 'YYYY-MM-DD') AS date, to_char(date_time, 'HH24:MI') AS time
FROM bid
