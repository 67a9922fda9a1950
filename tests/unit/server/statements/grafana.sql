# Grafana 11, written from what its public source asks

#? 1 rows of 1
SELECT current_setting('server_version_num')::int / 100 AS version

#? 0 rows of 1
SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'

#? 1 rows of 1
SELECT quote_ident(table_name) AS "table" FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog', '_timescaledb_cache') AND table_type = 'BASE TABLE' AND quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END FROM generate_series(array_lower(string_to_array(current_setting('search_path'), ','), 1), array_upper(string_to_array(current_setting('search_path'), ','), 1)) AS i, string_to_array(current_setting('search_path'), ',') s)

#? 6 rows of 2
SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns WHERE quote_ident(table_name) = 't'

#? 2 rows of 1
SELECT quote_ident(column_name) FROM information_schema.columns WHERE quote_ident(table_name) = 't' AND data_type IN ('timestamp with time zone', 'timestamp without time zone', 'bigint', 'integer') ORDER BY column_name

#? 1 rows of 3
SELECT at AS time, extract(epoch FROM at), x FROM t WHERE at BETWEEN '2026-01-01T00:00:00Z' AND '2026-02-01T00:00:00Z' ORDER BY 1
