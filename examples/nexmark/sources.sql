-- Nexmark's streams, generated: 2 % people, 6 % auctions, 92 % bids.
-- They need WATERSMEET_CONNECTORS=benchmarks.nexmarkconnector, in the directory of the repository.
CREATE SOURCE person (id bigint, name varchar, email_address varchar, credit_card varchar, city varchar, state varchar,
    date_time timestamp, extra varchar)
    WITH (connector = 'nexmark', nexmark.table.type = 'Person', nexmark.event.num = 20000);
CREATE SOURCE auction (id bigint, item_name varchar, description varchar, initial_bid bigint, reserve bigint,
    date_time timestamp, expires timestamp, seller bigint, category bigint, extra varchar)
    WITH (connector = 'nexmark', nexmark.table.type = 'Auction', nexmark.event.num = 20000);
CREATE SOURCE bid (auction bigint, bidder bigint, price bigint, channel varchar, url varchar, date_time timestamp,
    extra varchar)
    WITH (connector = 'nexmark', nexmark.table.type = 'Bid', nexmark.event.num = 20000);
-- The bids of q12, with the time at which each comes.
CREATE SOURCE arriving_bid (auction bigint, bidder bigint, price bigint, date_time timestamp, p_time timestamptz AS PROCTIME())
    WITH (connector = 'nexmark', nexmark.table.type = 'Bid', nexmark.event.num = 20000);
-- The side input of q13.
CREATE TABLE side_input (key bigint PRIMARY KEY, value varchar);
INSERT INTO side_input SELECT i, 'value ' || i FROM generate_series(0, 9999) AS g(i);
