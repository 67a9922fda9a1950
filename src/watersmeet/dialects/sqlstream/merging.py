"""MERGE of SQLstream, and the pumps that run one.

SQLstream, "MERGE", "CREATE PUMP".
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from watersmeet.dialects.sqlstream.nodes import StreamSelect
from watersmeet.dialects.statements.dml import column_name, target_name
from watersmeet.dialects.tree.definitions import Merge, MergeClauses
from watersmeet.dialects.tree.queries import Parameters, is_marked, name_of, place_of, read_tree
from watersmeet.dialects.tree.statements import Insert, Name
from watersmeet.dialects.tree.tokens import Cursor, not_supported
from watersmeet.errors import Span, error

_CLAUSES: Final = {"with_": "WITH", "returning": "RETURNING", "using_cond": "ON (columns)"}


def read_merge(cursor: Cursor, dialect: Dialect, base: dict[str, Any], parameters: Parameters = ()) -> Merge:
    """MERGE: the cursor stands at the word.

    SYNTAX_ERROR; FEATURE_NOT_SUPPORTED for what s-Server does not have, and for values of the table itself.
    """
    start = cursor.index
    tree = read_tree(cursor.originals(cursor.rest), cursor.text, dialect, parameters)
    if not isinstance(tree, exp.Merge):
        cursor.index = start
        raise cursor.error()
    reader = _Reader(tree, base)
    return Merge(**base, insert=reader.insert(), clauses=reader.clauses())


def merging_query(merge: Merge) -> exp.Expression:
    """The query of a MERGE that a pump runs. SYNTAX_ERROR if it ends."""
    query = merge.insert.query
    if not is_marked(query):
        raise error(
            "SYNTAX_ERROR",
            "a pump runs until it is stopped: USING (SELECT STREAM …) was expected",
            sql=merge.text,
            span=place_of(query),
        )
    return StreamSelect(**query.args, stream=exp.Var(this="STREAM"))


class _Reader:
    """The parts of one MERGE."""

    def __init__(self, tree: exp.Merge, base: dict[str, Any]) -> None:
        self._tree, self._base = tree, base
        self._table, alias = target_name(tree.this, base)
        self._shown = alias or self._table.name
        for name in _CLAUSES:
            if found := tree.args.get(name):
                raise self._lacking(f"{_CLAUSES[name]} in MERGE", found)
        whens = {}
        for when in tree.args["whens"].expressions:
            action = when.args["then"]
            if when.args.get("condition") is not None:
                raise self._lacking("a condition of WHEN in MERGE", when.args["condition"])
            kind = exp.Update if when.args["matched"] else exp.Insert
            if when.args.get("source") or not isinstance(action, kind):
                raise self._lacking(
                    f"{'BY SOURCE' if when.args.get('source') else action.name or action.key.upper()} in MERGE", when
                )
            if kind in whens:
                raise self._wrong("WHEN is there twice", when)
            whens[kind] = action
        if exp.Insert not in whens:
            raise self._lacking("MERGE without WHEN NOT MATCHED THEN INSERT", tree)
        self._inserted, self._updated = whens[exp.Insert], whens.get(exp.Update)

    def insert(self) -> Insert:
        """The rows that are not there yet."""
        if not isinstance(self._inserted.expression, exp.Tuple):
            raise self._lacking("this form of INSERT in MERGE", self._inserted)
        values = self._inserted.expression.expressions
        for value in values:
            self._check(value, "INSERT")
        listed = self._inserted.this.expressions if isinstance(self._inserted.this, exp.Tuple) else []
        return Insert(
            **self._base,
            table=self._table,
            columns=tuple(self._column(c) for c in listed),
            query=exp.select(*(v.copy() for v in values), copy=False).from_(self._tree.args["using"], copy=False),
        )

    def clauses(self) -> MergeClauses:
        """What stands behind ON, and in UPDATE."""
        condition = self._tree.args["on"]
        compared = []
        for part in condition.unnest().flatten() if isinstance(condition.unnest(), exp.And) else [condition]:
            sides = part.unnest()
            own, value = (sides.this, sides.expression) if isinstance(sides, exp.EQ) else (None, None)
            if value is not None and self._is_own(value):
                own, value = value, own
            if value is None or not self._is_own(own) or any(self._is_own(c) for c in value.find_all(exp.Column)):
                raise self._lacking(
                    f"an ON of MERGE that is no list of {self._shown}.column = value", part, "Join them by AND."
                )
            compared.append((self._column(own), value))
        assigned = []
        for item in self._updated.expressions if self._updated is not None else []:
            if not isinstance(item, exp.EQ) or not isinstance(item.this, exp.Column):
                raise self._lacking("this form of SET", item)
            self._check(item.expression, "UPDATE")
            assigned.append((self._column(item.this), item.expression))
        return MergeClauses(tuple(compared), tuple(assigned))

    def _is_own(self, tree: exp.Expression) -> bool:
        return isinstance(tree, exp.Column) and name_of(tree.args.get("table") or exp.to_identifier("")) == self._shown

    def _check(self, value: exp.Expression, where: str) -> None:
        for column in value.find_all(exp.Column):
            if self._is_own(column):
                raise self._lacking(f"a value of the table itself in {where} of MERGE", column)

    def _column(self, tree: exp.Expression) -> Name:
        return column_name(tree.this, self._place(tree))

    def _place(self, tree: exp.Expression) -> Span:
        return place_of(tree) or self._table.span

    def _lacking(self, what: str, tree: Any, hint: str | None = None) -> Exception:
        place = self._place(tree) if isinstance(tree, exp.Expression) else self._table.span
        return not_supported(what, self._base["text"], place, hint=hint)

    def _wrong(self, what: str, tree: exp.Expression) -> Exception:
        return error("SYNTAX_ERROR", what, sql=self._base["text"], span=self._place(tree))
