"""EXPLAIN ROW and EXPLAIN MISSING ROW.

For a missing row, the answer names the operator that rejected the rows that could have become the missing row, and the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.bounded import Named, PastScan, Recursion
from watersmeet.algebra.nodes import (
    Aggregate,
    Arrivals,
    AsofJoin,
    Column,
    Expand,
    Filter,
    Join,
    Node,
    Project,
    Repartition,
    Repeat,
    Scan,
    TimeFilter,
    TopN,
    Unary,
    Union,
    Unnest,
    Values,
    Window,
)
from watersmeet.algebra.scalars import ORACLE, Scalar, column_ref, conjuncts, rejected_columns
from watersmeet.algebra.trees import filtered, walk
from watersmeet.binder.batch import bind_batch_query
from watersmeet.database.reading import BatchQuery, check_running, failed_query, readable, reading
from watersmeet.database.sessions.context import Session, check_named, error_at
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.statements.explaining import ROW_COLUMNS, ExplainRow
from watersmeet.errors import DataError, Error, error
from watersmeet.kernel.evaluation.duck import VALUE_ERRORS
from watersmeet.lineage.origins import JOINS, Found, Origins, Read, Row, counted
from watersmeet.lineage.steps import Asker, Cell, Names, Step, conditions_text, drawn, nearest_text
from watersmeet.lineage.subqueries import has_single_values, inlined, numbered_rounds, of_all_rounds, of_round
from watersmeet.lineage.trees import Explained, bound_cell, plain
from watersmeet.lineage.views import Views
from watersmeet.store.manifests import Commit
from watersmeet.values.types import BIGINT, BOOLEAN, VARCHAR

Conditions = Sequence[Scalar]

#: At most this many rounds of a recursion are searched one by one.
MOST_SEARCHED: Final = 10


def origins_of(
    asker: Asker, of: Callable[[Scan | PastScan], Read], names: Callable[[Explained], Names], most: int
) -> Origins:
    """The object that explains rows and missing rows. For its parameters, see `Origins`."""

    def absent(explained: Explained, tree: Node, conditions: Conditions) -> list[Step]:
        return Search(origins, explained).steps(tree, conditions)

    origins = Origins(asker, of, names, most, absent)
    return origins


@dataclass(frozen=True)
class Search:
    """The search for a missing row within one query. It only visits nodes of which no row meets the conditions."""

    origins: Origins
    explained: Explained

    @property
    def names(self) -> Names:
        return self.origins.names(self.explained)

    def steps(self, node: Node, conditions: Conditions) -> list[Step]:
        """The reasons why no row of the node meets the conditions."""
        return self._ended(node, list(dict.fromkeys(conditions)))

    def _count(self, node: Node, conditions: Conditions) -> int:
        return self.origins.asker.count(filtered(plain(node, self.explained), conditions))

    def _some(self, node: Node, conditions: Conditions) -> bool:
        return self.origins.asker.some(filtered(plain(node, self.explained), conditions))

    def _found(self, node: Node, conditions: Conditions) -> Found:
        """The stored rows or candidates that meet the conditions."""
        return self.origins.found(self.explained, node, conditions, was_output=not self.explained.decisions)

    def _text(self, conditions: Conditions) -> str:
        return conditions_text(conditions, self.names)

    def _none_with(
        self, what: str, found: Found, conditions: Conditions, more: Callable[[Row], Sequence[Step]] | None = None
    ) -> Step:
        """A step that shows rows that fail conditions, each with the conditions that it fails."""
        below = found.extended(more, lambda row: "not " + ", ".join(map(row.with_values, row.unmet(conditions))))
        return Step(what, detail=f"{counted(found.total)}, none with {self._text(conditions)}", below=below)

    @singledispatchmethod
    def _ended(self, node: Node, conditions: Conditions) -> list[Step]:
        assert isinstance(node, (Unary, Arrivals)), type(node).__name__
        return self.steps(node.inputs[0], [c for c in conditions if c.columns <= node.inputs[0].ids])

    # -- leaves -----------------------------------------------------------------------------------------------------

    @_ended.register
    def _(self, node: Scan | PastScan, conditions: Conditions) -> list[Step]:
        found = self.origins.read(node)
        if found.view is not None:
            return [self._of_view(node, found, found.view, conditions)]
        return [Step(found.what, found.name, detail=self._lacks(node, conditions))]

    def _of_view(self, node: Scan | PastScan, found: Read, view: Explained, conditions: Conditions) -> Step:
        inner = _moved(conditions, node.outputs, found.columns)
        text = f"no row with {self._text(conditions)}" if conditions else "no rows"
        if found.missing is not None:
            return Step(found.what, found.name, detail=text, below=self._back_then(node, found, inner))
        if self.origins.asker.some(filtered(plain(view.tree, view), inner)):
            below = [(self._otherwise if view.decisions else self._left_out)(found, view, inner)]
        else:
            below = Search(self.origins, view).steps(view.tree, inner)
        return Step(found.what, found.name, detail=text, below=below)

    def _back_then(self, node: Scan | PastScan, found: Read, inner: Conditions) -> list[Step]:
        """The reasons as of the commits of insertion, for a view that is re-evaluated as of earlier commits."""
        assert found.missing is not None
        moments, more = found.missing(node, inner)
        steps = []
        for then in moments:
            if self.origins.asker.some(filtered(plain(then.view.tree, then.view), inner)):
                raise self.origins.forgotten(found, f"commit {then.commit} gives a row that it lacks")
            ended = Search(self.origins, then.view).steps(then.view.tree, inner)
            steps += [step.noted(f"as of commit {then.commit}" if then.commit else "") for step in ended]
        return [*steps, *([Step("…", detail=f"earlier rows: {counted(more)}")] if more else [])]

    def _lacks(self, node: Scan | PastScan | Named, conditions: Conditions) -> str:
        """The first condition that no stored row meets together with the conditions before it."""
        met: list[Scalar] = []
        tree = plain(node, self.explained)
        asker = self.origins.asker
        if not asker.some(tree):
            return "it has no rows"
        for part in conditions:
            if asker.some(filtered(tree, [*met, part])):
                met.append(part)
                continue
            text = f"no row with {self._text([part])}"
            if met:
                there = counted(asker.count(filtered(tree, met)))
                text = f"{there} with {self._text(met)}, none with {self._text([part])}"
            return "; ".join([text, *self._around(node, filtered(tree, met), part)])
        return f"no row with {self._text(conditions)}"

    def _around(self, node: Scan | PastScan | Named, there: Node, part: Scalar) -> list[str]:
        """The stored values nearest to the one that a condition requires. there: the candidate rows."""
        found = _constant(part)
        kind = None if found is None else ORACLE.exact_type_of(found[1].sql(dialect="duckdb"))
        if found is None or kind is None:
            return []
        value = Scalar(found[0], kind)
        (cell,) = self.origins.asker.values([Scalar(found[1], kind)], {})
        near = nearest_text(self.origins.asker, there, [value], [cell], self.names)
        column = next((c for c in node.columns if c.id == value.column), None)
        return [near, *([] if column is None else self._late(node, column, cell))]

    def _late(self, node: Scan | PastScan | Named, column: Column, cell: Cell) -> list[str]:
        """The lateness of a row with that time, as text; empty if it would not be late."""
        watermarks = dict(node.watermarks) if isinstance(node, Scan) else {}
        bound = bound_cell(watermarks.get(column.id, ()), self.explained.times, column)
        if bound is None or not self._is_below(cell, bound):
            return []
        return [f"such a row is late by {self._away(cell, bound)}: the watermark is {bound.shown}"]

    def _is_below(self, cell: Cell, bound: Cell) -> bool:
        below = exp.LT(this=cell.literal.expression, expression=bound.literal.expression)
        (found,) = self.origins.asker.values([Scalar(below, BOOLEAN)], {})
        return found.text == "true"

    def _away(self, cell: Cell, bound: Cell) -> str:
        """The distance between two times, as text."""
        ends = (cell.literal.expression, bound.literal.expression)
        span = exp.Sub(this=exp.func("greatest", *ends), expression=exp.func("least", *ends))
        (found,) = self.origins.asker.values([Scalar(span, VARCHAR)], {})
        return found.text or "NULL"

    def _otherwise(self, found: Read, view: Explained, conditions: Conditions) -> Step:  # noqa: ARG002
        """The step for rows that the query would return now, but that were rejected when they arrived."""
        rows = self.origins.found(view, view.tree, conditions, was_output=False)
        return Step("decided", detail=f"{counted(rows.total)} could have come: {view.decisions}", below=rows.steps)

    def _left_out(self, found: Read, view: Explained, conditions: Conditions) -> Step:
        """The step for a view that lacks rows of its stored inputs, because some of these were late and dropped.

        Raises HISTORY_GONE if no row was late.
        """
        bounds: dict[str, Cell] = {}
        texts = []
        for node in [n for n in walk(view.tree) if isinstance(n, Scan)]:
            late = self.origins.read(node).late
            for column in node.columns if late else ():
                bound = bound_cell(dict(node.watermarks).get(column.id, ()), view.times, column)
                if bound is not None:
                    bounds[column.id] = bound
                    name = f"{node.relation_name}.{column.name}"
                    texts.append(
                        f"{counted(late)} of {node.relation_name} arrived late and had no effect; the watermark of "
                        f"{name} is {bound.shown}"
                    )
        if not texts:
            raise self.origins.forgotten(found, "they give a row that it lacks")

        def away(row: Row) -> str:
            cells = ((bound, row.cells.get(i)) for i, bound in bounds.items())
            late = [
                self._away(cell, bound) for bound, cell in cells if cell is not None and self._is_below(cell, bound)
            ]
            return f"below the watermark by {', '.join(late)}" if late else ""

        below = self.origins.found(view, view.tree, conditions).extended(note=away)
        return Step("late", detail="; ".join(texts), below=below)

    @_ended.register
    def _(self, node: Values, conditions: Conditions) -> list[Step]:
        detail = f"{counted(len(node.rows))}, none with {self._text(conditions)}" if node.rows else "no rows"
        return [Step("Values", detail=detail)]

    # -- row by row -------------------------------------------------------------------------------------------------

    @_ended.register
    def _(self, node: Filter, conditions: Conditions) -> list[Step]:
        found = self._found(node.input, conditions)
        if not found.total:
            return self.steps(node.input, conditions)
        parts = conjuncts(node.predicate)
        return [self._none_with("Filter", found, parts)]

    @_ended.register
    def _(self, node: Project, conditions: Conditions) -> list[Step]:
        exprs = {c.id: e.expression for c, e in zip(node.outputs, node.exprs, strict=True)}
        return self.steps(node.input, [p for c in conditions for p in conjuncts(c.substitute(exprs))])

    @_ended.register
    def _(self, node: TimeFilter, conditions: Conditions) -> list[Step]:
        found = self._found(node.input, conditions)
        if not found.total:
            return self.steps(node.input, conditions)
        column = next(c for c in node.columns if c.id == node.column)
        bound = bound_cell(node.bound, self.explained.times, column)
        name = self.names[column.id]
        if bound is None:
            detail = f"{counted(found.total)}, waiting for the first watermark of {name}"
            return [Step("Time Filter", detail=detail, below=found.steps)]
        kind = "the watermark" if node.comparison[0] == "<" else "the bound"
        verb = "waiting" if node.comparison[0] == "<" else "expired"

        def away(row: Row) -> str:
            cell = row.cells[column.id]
            if cell.text is None:
                return f"{name} is NULL"
            return f"{name} = {cell.shown}, {verb} by {self._away(cell, bound)}"

        detail = f"{counted(found.total)}, none with {name} {node.comparison} {bound.shown}, {kind}"
        return [Step("Time Filter", detail=detail, below=found.extended(note=away))]

    @_ended.register
    def _(self, node: Unnest, conditions: Conditions) -> list[Step]:
        own = [c for c in conditions if c.columns <= node.input.ids]
        found = self._found(node.input, own)
        if not found.total:
            return self.steps(node.input, own)
        rest = [c for c in conditions if c not in own]

        def arrays(row: Row) -> str:
            return ", ".join(f"{a.text or 'NULL'}" for a in self.origins.asker.values(node.arrays, row.cells))

        detail = f"no element with {self._text(rest)}" if rest else "no element"
        return [Step("Unnest", detail=detail, below=found.extended(note=arrays))]

    @_ended.register
    def _(self, node: Expand, conditions: Conditions) -> list[Step]:
        return self._computed("Grouping Sets", node, conditions)

    @_ended.register
    def _(self, node: Window, conditions: Conditions) -> list[Step]:
        return self._computed("Window", node, conditions)

    def _computed(self, what: str, node: Unary, conditions: Conditions) -> list[Step]:
        """The steps of a node that adds columns to each row of its input."""
        own = [c for c in conditions if c.columns <= node.input.ids]
        found = self._found(node, own)
        if not found.total:
            return self.steps(node.input, own)
        rest = [c for c in conditions if c not in own]
        return [self._none_with(what, found, rest)]

    @_ended.register
    def _(self, node: Repeat, conditions: Conditions) -> list[Step]:
        found = self._found(node.input, conditions)
        if not found.total:
            return self.steps(node.input, conditions)
        return [Step("Repeat", detail="the other input of EXCEPT or INTERSECT removes them", below=found.steps)]

    @_ended.register
    def _(self, node: Repartition, conditions: Conditions) -> list[Step]:
        return self.steps(node.input, conditions)

    # -- joins ------------------------------------------------------------------------------------------------------

    @_ended.register
    def _(self, node: Join, conditions: Conditions) -> list[Step]:
        title = JOINS[node.kind]
        if node.kind in ("semi", "anti"):
            found = self._found(node.left, conditions)
            if not found.total:
                return self.steps(node.left, conditions)
            if node.kind == "semi":
                return [self._without_partners(title, node, found, node.right, [])]
            below = found.extended(lambda row: row.partners(node))
            return [Step(title, detail=f"{counted(found.total)}, each with a partner", below=below)]
        # A row with NULLs for one side fails each condition that NULL can't meet.
        rejected = frozenset[str]().union(*map(rejected_columns, conditions))
        needs_left, needs_right = (
            node.keeps_left or rejected & node.left.ids,
            node.keeps_right or rejected & node.right.ids,
        )
        if needs_left and needs_right:
            return self._paired(title, node, conditions)
        steps: list[Step] = []
        for side in [node.left] * (not needs_right) + [node.right] * (not needs_left):
            own = [c for c in conditions if c.columns <= side.ids]
            if self._some(side, own):
                found = self._found(node, own)
                return [*steps, self._none_with(title, found, [c for c in conditions if c not in own])]
            steps += self.steps(side, own)
        return steps

    def _paired(self, title: str, node: Join, conditions: Conditions) -> list[Step]:
        """The steps of a join that requires a row of both sides."""
        sides = [(side, self._of_side(node, side, conditions)) for side in (node.left, node.right)]
        dead = [(side, own) for side, own in sides if not self._some(side, own)]
        if dead:
            return [step for side, own in dead for step in self.steps(side, own)]
        both = [c for _, own in sides for c in own]
        pairs = self._found(node, both)
        if pairs.total:
            return [self._none_with(title, pairs, [c for c in conditions if c not in both])]
        few, (other, _) = sorted(sides, key=lambda s: self._count(*s))
        theirs = [c for c in conditions if c.columns <= other.ids]
        return [self._without_partners(title, node, self._found(*few), other, theirs)]

    def _without_partners(self, title: str, node: Join, found: Found, side: Node, theirs: Conditions) -> Step:
        below = found.extended(lambda row: [row.lacking(node, side, theirs)])
        return Step(title, detail=f"{counted(found.total)}, none with a partner", below=below)

    def _of_side(self, node: Join, side: Node, conditions: Conditions) -> list[Scalar]:
        """The conditions on rows of one side, including conditions on the other side's equal keys."""
        own = [c for c in conditions if c.columns <= side.ids]
        constants = [v for c in conditions if (v := _constant(c)) is not None]
        values = {side.name: value for side, value in constants if isinstance(side, exp.Column)}
        for pair in node.keys:
            mine, theirs = (pair.left, pair.right) if side is node.left else (pair.right, pair.left)
            if mine.column is not None and theirs.column is not None:
                other = {theirs.column: column_ref(mine.column)}
                own += [c.substitute(other) for c in conditions if c.columns == {theirs.column}]
            elif theirs.columns and theirs.columns <= values.keys():
                value = exp.paren(theirs.substitute(values).expression)
                own.append(Scalar(exp.EQ(this=exp.paren(mine.expression), expression=value), BOOLEAN))
        return list(dict.fromkeys(own))

    @_ended.register
    def _(self, node: AsofJoin, conditions: Conditions) -> list[Step]:
        own = [c for c in conditions if c.columns <= node.left.ids]
        left = self._found(node.left, own)
        if not left.total:
            return self.steps(node.left, own)
        rest = [c for c in conditions if c not in own]
        found = self._found(node, own)
        if found.total:
            return [self._none_with("Asof Join", found, rest)]
        below = left.extended(lambda row: [row.not_near(node)])
        return [Step("Asof Join", detail=f"{counted(left.total)}, none with a partner", below=below)]

    # -- many rows to one -------------------------------------------------------------------------------------------

    @_ended.register
    def _(self, node: Aggregate, conditions: Conditions) -> list[Step]:
        keys = {c.id: k.expression for c, k in zip(node.outputs, node.keys, strict=False)}
        own = [c for c in conditions if c.columns <= keys.keys()]
        found = self._found(node, own)
        if not found.total:
            return self.steps(node.input, [p for c in own for p in conjuncts(c.substitute(keys))])
        rest = [c for c in conditions if c not in own]
        what = "Group" if node.keys else "Aggregate"
        return [self._none_with(what, found, rest)]

    @_ended.register
    def _(self, node: Union, conditions: Conditions) -> list[Step]:
        return [
            Step(
                "Union",
                detail=f"part {i} of {len(node.parts)}",
                below=self.steps(p, _moved(conditions, node.outputs, p.columns)),
            )
            for i, p in enumerate(node.parts, 1)
        ]

    # -- rounds -----------------------------------------------------------------------------------------------------

    @_ended.register
    def _(self, node: Named, conditions: Conditions) -> list[Step]:
        return [Step("row", detail=self._lacks(node, conditions))]

    @_ended.register
    def _(self, node: Recursion, conditions: Conditions) -> list[Step]:
        first = self.steps(node.anchor, _moved(conditions, node.outputs, node.anchor.columns))
        steps, every = [Step("Recursion", detail="the first round", below=first)], of_all_rounds(node)
        if every is not None:
            trees = [("the later rounds", every)]
        else:
            number = Column("#round", "", BIGINT, False)
            last = max(self.origins.asker.tally(numbered_rounds(node, number), number), default=0)
            trees = [(f"round {n}", of_round(node, n)) for n in range(2, last + 2)]
        for said, tree in trees[:MOST_SEARCHED]:
            below = self.steps(tree, _moved(conditions, node.outputs, tree.columns))
            steps.append(Step("Recursion", detail=said, below=below))
        return [*steps, *([Step("…", detail="later rounds")] if len(trees) > MOST_SEARCHED else [])]

    # -- orders -----------------------------------------------------------------------------------------------------

    @_ended.register
    def _(self, node: TopN, conditions: Conditions) -> list[Step]:
        found = self._found(node.input, conditions)
        if not found.total:
            return self.steps(node.input, conditions)
        below = found.extended(note=lambda row: row.place(node))
        return [Step("Top N", detail=f"{counted(found.total)}, none among those that are kept", below=below)]


def _constant(part: Scalar) -> tuple[exp.Expression, exp.Expression] | None:
    """The two sides of an equality, the second of which reads no columns."""
    one = part.expression.unnest()
    if not isinstance(one, exp.EQ):
        return None
    for side, other in ((one.this, one.expression), (one.expression, one.this)):
        if side.find(exp.Column) is not None and other.find(exp.Column) is None:
            return side.unnest(), other
    return None


def _moved(conditions: Conditions, columns: Sequence[Column], others: Sequence[Column]) -> list[Scalar]:
    """The conditions with columns replaced by others."""
    names = {a.id: column_ref(b.id) for a, b in zip(columns, others, strict=True)}
    return [c.substitute(names) for c in conditions]


#: The number of attempts if new epochs are committed meanwhile.
_TRIES: Final = 20


def explain_row(session: Session, statement: ExplainRow) -> Result:
    """Runs the query again, only for the rows in question, as of one moment.

    Raises the errors of the query; PERMISSION_DENIED without the right to read all that its views read;
    FEATURE_NOT_SUPPORTED for results that can't be computed again; HISTORY_GONE if required rows are no longer kept.
    """
    if session.transaction is not None and not session.transaction.read_only:
        session.notice("EXPLAIN ROW shows committed rows, without the changes of this transaction.")
    try:
        try:
            # DuckDB's optimizer removes some errors: n + 1 > 10 becomes n > 9.
            steps = _found(session, statement, tolerant=_has_failed(session))
        except VALUE_ERRORS:  # where an expression of a view fails, the view contains NULL
            steps = _found(session, statement, tolerant=True)
    except duckdb.Error as cause:
        failed = failed_query(cause, statement.text)
        if not isinstance(failed, DataError):
            raise failed from cause
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the row can't be explained, because an expression fails",
            sql=statement.text,
            detail=f"{failed.message[:1].upper()}{failed.message[1:]}.",
        ) from cause
    except Error as err:
        err.sql = err.sql or statement.text
        raise
    return typed_result("EXPLAIN", ROW_COLUMNS, [tuple(line) for line in drawn(steps)])


def _has_failed(session: Session) -> bool:
    """Whether an expression of a view has failed so far."""
    epoch = session.database.log.last_epoch()
    return epoch is not None and bool(epoch.metrics.errors)


def _found(session: Session, statement: ExplainRow, *, tolerant: bool) -> list[Step]:
    """The answer. tolerant: failing expressions return NULL, as in views; otherwise they raise an error of DuckDB."""
    for _ in range(_TRIES):
        steps = _steps(session, statement, tolerant)
        if steps is not None:
            return steps
    raise error(
        "SNAPSHOT_TOO_OLD", "new epochs were committed all the time during the search for the row", sql=statement.text
    )


def _steps(session: Session, statement: ExplainRow, tolerant: bool) -> list[Step] | None:
    """The steps of the answer; None if the watermarks and the rows that were read are of different epochs."""
    catalog = readable(session.catalog)
    found = bind_batch_query(statement.query, catalog, statement.text, session.dialect, files=False)
    check_named(session, found.named, statement.text)
    if found.topics:
        raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED", "a topic's messages are not stored here")
    tree, conditions = _searched(found.bound.relation) if statement.missing else (found.bound.relation, [])
    epoch = session.database.log.last_epoch()
    views = Views(session, catalog, statement, epoch or Commit("epoch"), tolerant)
    root = views.explained("the query", tree)
    views.follow(root.tree)
    while True:
        ids = tuple(dict.fromkeys([*found.depends_on, *views.read]))
        check_running(session, ids)
        past = tuple({s.name: s for s in (*found.past, *views.past)}.values())
        query = BatchQuery("", (), catalog, statement.text, depends_on=ids, system=found.system, past=past)
        with reading(session, query, newest=False) as connection:
            if session.database.log.last_epoch() != epoch:
                return None
            asker = Asker(connection, lambda i: catalog.relations[i].shown)
            if has_single_values(found.bound.relation):
                asker.rows(inlined(found.bound.relation), 1)  # raises the query's error, if any
            try:
                with views.answering(connection, asker, {s.name for s in past}, root):
                    origins = origins_of(asker, views.what, views.names, statement.limit)
                    rows = origins.found(root, root.tree, conditions)
                    missing = statement.missing and not rows.total
                    steps = Search(origins, root).steps(root.tree, conditions) if missing else rows.steps
            except Error as err:
                if err.condition == "STATE_DAMAGED" and session.database.log.last_epoch() != epoch:
                    return None  # only the state of the newest epoch is kept
                raise
            if views.lacks_past:  # only now it is known which commits to read
                continue
        if statement.missing and not missing:
            session.notice("The row is not missing.")
        return steps


def _searched(tree: Node) -> tuple[Node, list[Scalar]]:
    """The relation that EXPLAIN MISSING ROW searches, and the conditions that it searches for."""
    while isinstance(tree, Project):
        tree = tree.input
    return (tree.input, conjuncts(tree.predicate)) if isinstance(tree, Filter) else (tree, [])
