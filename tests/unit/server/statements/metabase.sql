# Metabase 0.50, written from what its public source asks

#? 1 rows of 1
SHOW timezone

#? 0 rows of 2
SELECT nspname, typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid IN (SELECT DISTINCT enumtypid FROM pg_enum e)

#? 4 rows of 5
SELECT "n"."nspname" AS "schema", "c"."relname" AS "name", CASE "c"."relkind" WHEN 'r' THEN 'TABLE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE NULL END AS "type", "d"."description" AS "description", "stat"."n_live_tup" AS "estimated_row_count" FROM "pg_catalog"."pg_class" AS "c" INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid" LEFT JOIN "pg_catalog"."pg_description" AS "d" ON ("c"."oid" = "d"."objoid") AND ("d"."objsubid" = 0) AND ("d"."classoid" = 'pg_class'::regclass) LEFT JOIN "pg_stat_user_tables" AS "stat" ON ("n"."nspname" = "stat"."schemaname") AND ("c"."relname" = "stat"."relname") WHERE ("n"."nspname" !~ '^information_schema|catalog_history|pg_') AND ("c"."relkind" IN ('r', 'p', 'v', 'f', 'm')) ORDER BY "type" ASC, "schema" ASC, "name" ASC

#? 10 rows of 7
SELECT "c"."column_name" AS "name", CASE WHEN "c"."udt_schema" IN ('public', 'pg_catalog') THEN format('%s', "c"."udt_name") ELSE format('"%s"."%s"', "c"."udt_schema", "c"."udt_name") END AS "database-type", "c"."ordinal_position" - 1 AS "database-position", "c"."table_schema" AS "table-schema", "c"."table_name" AS "table-name", "pk"."column_name" IS NOT NULL AS "pk?", col_description(CAST(CAST(format('%I.%I', CAST("c"."table_schema" AS TEXT), CAST("c"."table_name" AS TEXT)) AS REGCLASS) AS OID), "c"."ordinal_position") AS "field-comment" FROM "information_schema"."columns" AS "c" LEFT JOIN (SELECT "tc"."table_schema", "tc"."table_name", "kc"."column_name" FROM "information_schema"."table_constraints" AS "tc" INNER JOIN "information_schema"."key_column_usage" AS "kc" ON "tc"."constraint_name" = "kc"."constraint_name" AND "tc"."table_schema" = "kc"."table_schema" AND "tc"."table_name" = "kc"."table_name" WHERE "tc"."constraint_type" = 'PRIMARY KEY') AS "pk" ON "c"."table_schema" = "pk"."table_schema" AND "c"."table_name" = "pk"."table_name" AND "c"."column_name" = "pk"."column_name" WHERE "c"."table_schema" !~ '^information_schema|catalog_history|pg_' ORDER BY "table-schema", "table-name", "database-position"

#? 4 rows of 7
WITH table_privileges AS (SELECT NULL AS role, t.schemaname AS schema, t.objectname AS table, pg_catalog.has_any_column_privilege(current_user, '"' || t.schemaname || '"."' || t.objectname || '"', 'update') AS update, pg_catalog.has_any_column_privilege(current_user, '"' || t.schemaname || '"."' || t.objectname || '"', 'select') AS select, pg_catalog.has_any_column_privilege(current_user, '"' || t.schemaname || '"."' || t.objectname || '"', 'insert') AS insert, pg_catalog.has_table_privilege(current_user, '"' || t.schemaname || '"."' || t.objectname || '"', 'delete') AS delete FROM (SELECT schemaname, tablename AS objectname FROM pg_catalog.pg_tables UNION SELECT schemaname, viewname AS objectname FROM pg_catalog.pg_views UNION SELECT schemaname, matviewname AS objectname FROM pg_catalog.pg_matviews) t WHERE t.schemaname !~ '^pg_' AND t.schemaname <> 'information_schema' AND pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage')) SELECT t.* FROM table_privileges t

#? 0 rows of 2
SELECT fk_ns.nspname AS "fk-table-schema", fk_table.relname AS "fk-table-name" FROM pg_constraint c JOIN pg_class fk_table ON c.conrelid = fk_table.oid JOIN pg_namespace fk_ns ON c.connamespace = fk_ns.oid WHERE c.contype = 'f'
