"""Expressions in which the innermost part that fails is NULL, and the parts around it are evaluated with that NULL.

Each part that can fail is put inside of DuckDB's TRY. If no part fails that a row's value depends on, the value is the
same as without TRY: it never depends on other rows. A part has the same value inside of a larger expression as in a
column of a subquery.

Expressions are trees of DuckDB's own parser, as `json_serialize_sql` gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

Tree = dict[str, Any]

#: Above this number, errors are counted for the whole expression only.
_MOST_PARTS: Final = 200
#: Classes and types of nodes that never fail by themselves, or that have no value of their own.
_SAFE: Final = frozenset(
    {"COLUMN_REF", "CONSTANT", "CONJUNCTION", "LAMBDA"}
    | {"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_NOT", "OPERATOR_TRY"}
)
#: Functions that TRY does not accept, because each call may return another value.
_VOLATILE: Final = frozenset({"error", "gen_random_uuid", "nextval", "random", "setseed", "uuid", "uuidv4", "uuidv7"})


@dataclass(frozen=True)
class Part:
    """A part of an expression that can fail by itself.

    node: the part. written: its SQL. tried: the same with NULL for failing parts inside of it, so that only the part
    itself can fail. reached: the condition for rows whose value depends on the part. opaque: TRY does not accept it.
    """

    node: Tree
    written: str
    tried: str
    reached: str
    opaque: bool

    @property
    def status(self) -> str:
        """True where the part is reached and fails by itself."""
        return f"CASE WHEN {self.reached} THEN {boxed(self.tried)} IS NULL ELSE false END"

    @property
    def where_reached(self) -> str:
        """The value of the part, which may fail, where it is reached."""
        return f"CASE WHEN {self.reached} THEN {self.tried} END"


@dataclass(frozen=True)
class Tolerant:
    """An expression with all that its evaluation with errors needs.

    sql: the expression. tried: the same with NULL for parts that fail. opaque: TRY does not accept the whole.
    parts: the parts that can fail, the innermost first.
    """

    tree: Tree
    sql: str
    tried: str
    opaque: bool
    parts: tuple[Part, ...]


def boxed(sql: str) -> str:
    """A struct with the value of an expression, NULL where the expression fails."""
    return f"TRY({{'v': {sql}}})"


def parse(connection: duckdb.DuckDBPyConnection, sql: str) -> Tree:
    """The tree of an expression."""
    tree: Tree = _items(_serialized(connection, sql))[0]
    return tree


def tolerant(connection: duckdb.DuckDBPyConnection, tree: Tree) -> Tolerant:
    """The expression `tree` for evaluation with errors."""
    found = _Parts()
    found.visit(tree, ())
    if len(found.parts) > _MOST_PARTS:
        found.parts = found.parts[-1:]  # the whole
    trees = [tree, _tried(tree)]
    for part in found.parts:
        trees += [part.node, part.tried, *(condition for _, condition in part.reached)]
    texts = iter(_sql_of(connection, trees))
    sql, tried = next(texts), next(texts)
    parts = []
    for part in found.parts:
        written, inner = next(texts), next(texts)
        reached = " AND ".join(form.format(next(texts)) for form, _ in part.reached)
        parts.append(Part(part.node, written, inner, reached or "true", _is_opaque(part.node)))
    return Tolerant(tree, sql, tried, _is_opaque(tree), tuple(parts))


def without(connection: duckdb.DuckDBPyConnection, tree: Tree, part: Part) -> Tree:
    """The expression with a part replaced by NULL of the same type."""
    null = parse(connection, "CASE WHEN false THEN 1 END")
    null["case_checks"][0]["then_expr"] = {**part.node, "alias": ""}

    def replaced(node: Tree) -> Tree:
        return {**null, "alias": node["alias"]} if node is part.node else _with_children(node, replaced)

    return replaced(tree)


def _serialized(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    found = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {sql}"]).fetchone()
    assert found is not None
    statement = json.loads(found[0])
    if statement["error"]:
        raise duckdb.ParserException(statement["error_message"])
    return statement


def _items(statement: Any) -> list[Tree]:
    items: list[Tree] = statement["statements"][0]["node"]["select_list"]
    return items


def _sql_of(connection: duckdb.DuckDBPyConnection, trees: Sequence[Tree]) -> list[str]:
    """The SQL of each expression."""
    statement = _serialized(connection, "1")
    texts = []
    for tree in trees:
        _items(statement)[:] = [{**tree, "alias": ""}]
        texts.append(json.dumps(statement))
    found = connection.execute("SELECT json_deserialize_sql(t) FROM (SELECT unnest(?::VARCHAR[]) AS t)", [texts])
    return [str(sql).removeprefix("SELECT ") for (sql,) in found.fetchall()]


def _with_children(node: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """A copy of the node with its operands changed. The parameters of a lambda are no operands."""
    return {k: v if k == "lhs" else _changed(v, change) for k, v in node.items()}


def _changed(value: Any, change: Callable[[Tree], Tree]) -> Any:
    if isinstance(value, list):
        return [_changed(v, change) for v in value]
    if isinstance(value, dict):
        return change(value) if "class" in value else {k: _changed(v, change) for k, v in value.items()}
    return value


def _children(node: Tree) -> list[Tree]:
    """The operands of a node."""
    found: list[Tree] = []

    def collect(child: Tree) -> Tree:
        found.append(child)
        return child

    _with_children(node, collect)
    return found


def _tried(node: Tree) -> Tree:
    """The expression with each part that can fail inside of TRY."""
    if node["type"] == "OPERATOR_TRY":
        return node
    made = _with_children(node, _tried)
    if not _can_fail(node) or _is_opaque(node):
        return made
    return {
        "class": "OPERATOR",
        "type": "OPERATOR_TRY",
        "alias": node["alias"],  # the name of a field where the parent makes a struct
        "query_location": node["query_location"],
        "children": [{**made, "alias": ""}],
    }


def _within(node: Tree) -> Tree:
    """The node with operands that do not fail. An error inside of a lambda is an error of the node."""
    return _with_children(node, lambda child: child if child["class"] == "LAMBDA" else _tried(child))


def _can_fail(node: Tree) -> bool:
    return node["class"] not in _SAFE and node["type"] not in _SAFE and not node.get("try_cast")


def _is_opaque(node: Tree) -> bool:
    """Whether TRY does not accept the expression."""
    if node["class"] == "SUBQUERY" or str(node.get("function_name")).lower() in _VOLATILE:
        return True
    return any(map(_is_opaque, _children(node)))


#: A condition: a text with {} for the SQL of an expression, and the expression.
_Condition = tuple[str, Tree]


@dataclass(frozen=True)
class _Found:
    node: Tree
    tried: Tree
    reached: tuple[_Condition, ...]


@dataclass
class _Parts:
    """Collects the parts of an expression that can fail, the innermost first."""

    parts: list[_Found] = field(default_factory=list)

    def visit(self, node: Tree, reached: tuple[_Condition, ...]) -> None:
        """Adds the parts of `node`, which matters where the conditions are true."""
        if node["class"] == "CASE":
            self._visit_case(node, reached)
        elif node["class"] == "CONJUNCTION":
            # An operand that fails matters unless another one decides.
            undecided = "coalesce({}, true)" if node["type"] == "CONJUNCTION_AND" else "NOT coalesce({}, false)"
            others = [(undecided, _tried(child)) for child in node["children"]]
            for i, child in enumerate(node["children"]):
                self.visit(child, (*reached, *others[:i], *others[i + 1 :]))
        elif node["type"] == "OPERATOR_COALESCE":
            before = reached
            for child in node["children"]:
                self.visit(child, before)
                before = (*before, ("({}) IS NULL", _tried(child)))
        elif node["class"] not in ("LAMBDA", "SUBQUERY") and node["type"] != "OPERATOR_TRY":
            for child in _children(node):
                self.visit(child, reached)
        if _can_fail(node):
            self.parts.append(_Found(node, _within(node), reached))

    def _visit_case(self, node: Tree, reached: tuple[_Condition, ...]) -> None:
        before = reached
        for check in node["case_checks"]:
            condition = _tried(check["when_expr"])
            self.visit(check["when_expr"], before)
            self.visit(check["then_expr"], (*before, ("({}) IS TRUE", condition)))
            before = (*before, ("({}) IS NOT TRUE", condition))
        self.visit(node["else_expr"], before)
