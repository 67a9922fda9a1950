-- Three days of a card network, by a rule: DuckDB writes authorizations and settlements as files, in time order.
CREATE TABLE authorizations AS
SELECT TIMESTAMP '2026-03-02 00:00:00' + to_seconds(i * 5 + hash(i) % 5) AS ts, i AS id,
    'card-' || hash(i // 3 + 17) % 300 AS card, (hash(i * 7) % 44)::INT AS merchant,
    ((100 + hash(i * 13) % 40000) / 100)::DECIMAL(10, 2) AS amount
FROM range(50000) AS r (i);

-- Most are settled, some twice, some never; some settlements have no authorization.
CREATE TABLE settlements AS
SELECT ts + to_seconds(20 + hash(id * 3) % 900) AS ts, id + (hash(id * 5) % 50 = 0)::INT * 1000000 AS id, amount AS paid
FROM authorizations WHERE hash(id * 11) % 10 < 8
UNION ALL
SELECT ts + to_seconds(1000), id, -amount FROM authorizations WHERE hash(id * 11) % 100 = 3;

COPY (SELECT * FROM authorizations WHERE id < 25000 ORDER BY ts, id) TO 'data/authorizations-1.csv' (HEADER);
COPY (SELECT * FROM authorizations WHERE id >= 25000 ORDER BY ts, id) TO 'data/authorizations-2.csv' (HEADER);
COPY (SELECT * FROM settlements ORDER BY ts, id) TO 'data/settlements-1.csv' (HEADER);
