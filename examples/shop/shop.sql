-- Orders come through Kafka; customers and prices are tables of PostgreSQL, whose changes are followed.

CREATE SECRET password WITH (backend = 'meta') AS '{password}';

CREATE SOURCE orders (id bigint, customer int, item varchar, quantity int, ordered_at timestamp)
WITH (connector = 'kafka', topic = 'orders', properties.bootstrap.server = '{broker}')
FORMAT PLAIN ENCODE JSON;

CREATE SOURCE shop WITH (
    connector = 'postgres-cdc', hostname = '127.0.0.1', port = '{port}', username = '{user}',
    password = SECRET password, database.name = 'shop'
);
CREATE TABLE customers (*) FROM shop TABLE 'public.customers';
CREATE TABLE prices (*) FROM shop TABLE 'public.prices';

-- Each order at the price that was valid then, with the customer as known now. A new price or a changed customer
-- corrects orders that are out already.
CREATE MATERIALIZED VIEW sold AS
SELECT o.id, o.ordered_at, o.item, o.quantity, p.price, CAST(o.quantity * p.price AS numeric(12, 2)) AS total,
    c.name AS customer, c.city
FROM orders o
ASOF JOIN prices p ON o.item = p.item AND o.ordered_at >= p.valid_from
LEFT JOIN customers c ON o.customer = c.id;

CREATE MATERIALIZED VIEW by_city AS
SELECT city, count(*) AS orders, sum(total) AS total FROM sold GROUP BY city;

-- The same rows at three places, each once.
CREATE SINK to_postgres FROM sold WITH (
    connector = 'postgres', host = '127.0.0.1', port = '{port}', user = '{user}', password = SECRET password,
    database = 'shop', table = 'sold', type = 'upsert', primary_key = 'id'
);
CREATE SINK to_delta FROM sold WITH (
    connector = 'deltalake', location = '{folder}/delta', type = 'upsert', primary_key = 'id',
    create_table_if_not_exists = 'true'
);
CREATE SINK to_iceberg FROM sold WITH (
    connector = 'iceberg', catalog.type = 'jdbc', catalog.uri = 'jdbc:postgresql://127.0.0.1:{port}/lake',
    catalog.jdbc.user = '{user}', catalog.jdbc.password = SECRET password, warehouse.path = 'file://{folder}/iceberg',
    database.name = 'shop', table.name = 'sold', type = 'upsert', primary_key = 'id',
    create_table_if_not_exists = 'true'
);
