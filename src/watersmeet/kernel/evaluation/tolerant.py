"""Conditions in which an error of one part does not hide what the others decide.

DuckDB evaluates AND, OR and the conditions of CASE in an order of its own, and only for rows that are not yet decided:
whether a part raises an error for a row depends on the rows beside it. So once there is an error each part is guarded
on its own and counts as NULL where it raises one: then the result of a row follows from that row alone, and it is the
one that rows get as long as nothing is raised.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb


def tolerant(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The expression `sql` with the parts of its AND, OR and CASE conditions inside of TRY; `sql` if it has none."""
    found = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {sql}"]).fetchone()
    assert found is not None
    tree = json.loads(found[0])
    if tree["error"] or not _guard(tree):
        return sql
    made = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    assert made is not None
    return str(made[0]).removeprefix("SELECT ")


def _guard(node: Any) -> bool:
    """Guards parts below `node` in place; True if there were any."""
    if isinstance(node, list):
        return sum(map(_guard, node)) > 0  # all of them, not only to the first
    if not isinstance(node, dict):
        return False
    changed = sum(map(_guard, node.values())) > 0
    if node.get("class") == "CONJUNCTION":
        node["children"] = [_guarded(n) for n in node["children"]]
        return True
    for check in node.get("case_checks", ()):
        check["when_expr"] = _guarded(check["when_expr"])
        changed = True
    return changed


def _guarded(node: dict[str, Any]) -> dict[str, Any]:
    if node["class"] in ("CONJUNCTION", "COLUMN_REF", "CONSTANT") or _has_subquery(node):  # TRY takes no subqueries
        return node
    return {
        "class": "OPERATOR",
        "type": "OPERATOR_TRY",
        "alias": "",
        "query_location": node["query_location"],
        "children": [node],
    }


def _has_subquery(node: Any) -> bool:
    if isinstance(node, dict):
        return node.get("class") == "SUBQUERY" or any(_has_subquery(n) for n in node.values())
    return isinstance(node, list) and any(_has_subquery(n) for n in node)
