"""The clauses of a query: FROM and joins, WITH, groups and aggregates, windows, ORDER BY and LIMIT, subqueries."""
