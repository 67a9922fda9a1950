# Superset 4 by psycopg2 and SQLAlchemy, written from what its public source asks

#? 1 rows of 1
SELECT pg_catalog.version()

#? 0 rows of 2
SELECT t.oid, typarray FROM pg_type t JOIN pg_namespace ns ON typnamespace = ns.oid WHERE typname = 'hstore'

#? SET
SET search_path = "public"

#? 1 rows of 1
SELECT pg_backend_pid()

#? 0 rows of 1
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = '0'

#? 3 rows of 1
SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%' ORDER BY nspname

#? 1 rows of 1
SELECT datname FROM pg_database WHERE datistemplate = false

#? 1 rows of 1
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')

#? 46 rows of 1
EXPLAIN SELECT name, count(*) FROM t GROUP BY name
