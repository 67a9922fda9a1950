"""What the parts of a tree are called in SQL. The grammar's own names of them are not shown to anybody."""

from __future__ import annotations

from typing import Final

#: SQL's words for the parts that a query, an item of FROM, a join or an expression can have.
_WORDS: Final = {
    "alias": "an alias",
    "all": "ALL",
    "by_name": "BY NAME",
    "catalog": "a name of three parts",
    "changelog": "changelog()",
    "cluster": "CLUSTER BY",
    "connect": "CONNECT BY",
    "cube": "CUBE",
    "distinct": "DISTINCT",
    "distribute": "DISTRIBUTE BY",
    "emit": "EMIT",
    "except_": "EXCEPT",
    "except": "EXCEPT",
    "fetch": "FETCH",
    "for_": "FOR",
    "format": "FORMAT",
    "from_": "FROM",
    "grouping_sets": "GROUPING SETS",
    "having": "HAVING",
    "hint": "a hint",
    "hints": "a hint",
    "into": "INTO",
    "joins": "a join",
    "kind": "AS behind SELECT",
    "laterals": "LATERAL",
    "limit": "LIMIT",
    "locks": "FOR UPDATE or FOR SHARE",
    "match": "MATCH_RECOGNIZE",
    "offset": "OFFSET",
    "only": "ONLY",
    "order": "ORDER BY",
    "ordinality": "WITH ORDINALITY",
    "over": "OVER",
    "partition": "PARTITION",
    "pivots": "PIVOT",
    "prewhere": "PREWHERE",
    "qualify": "QUALIFY",
    "rename": "RENAME",
    "replace": "REPLACE",
    "rollup": "ROLLUP",
    "sample": "TABLESAMPLE",
    "settings": "SETTINGS",
    "sort": "SORT BY",
    "static": "table()",
    "stream": "SELECT STREAM",
    "totals": "WITH TOTALS",
    "using": "USING",
    "version": "FOR SYSTEM_TIME AS OF",
    "when": "a time",
    "where": "WHERE",
    "windows": "WINDOW",
    "with_": "WITH",
    "within": "WITHIN",
    "grace": "GRACE PERIOD",
}


def words_of(part: str) -> str | None:
    """SQL's words for a part that the grammar calls so; None where there are none."""
    return _WORDS.get(part)
