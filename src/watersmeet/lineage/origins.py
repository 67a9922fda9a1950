"""EXPLAIN ROW shows the input rows of a row, operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Final

from watersmeet.algebra.bounded import Named, PastScan, Recursion
from watersmeet.algebra.nodes import (
    Aggregate,
    Arrivals,
    AsofJoin,
    Column,
    Expand,
    Filter,
    Join,
    KeyPair,
    Node,
    Repeat,
    Scan,
    TimeFilter,
    TopN,
    Unary,
    Union,
    Unnest,
    Values,
    Window,
    WindowCall,
    WindowFrame,
)
from watersmeet.algebra.rewrites.conditions import as_predicate
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.trees import filtered, read
from watersmeet.errors import Error, error
from watersmeet.lineage.lookups import MOMENT, gives_candidates
from watersmeet.lineage.steps import (
    Asker,
    Cell,
    Cells,
    Names,
    Step,
    conditions_text,
    equal,
    equals,
    expression_text,
    filled,
    key_text,
    nearest_text,
    order_text,
    picked,
    row_json,
)
from watersmeet.lineage.subqueries import of_round
from watersmeet.lineage.trees import Explained, Wide, bound_cell, on_the_right_side, ordered_whole, plain
from watersmeet.values.types import BIGINT

#: The maximum number of rows that a statement explains.
MOST_ROWS: Final = 1000
#: The prefix of the names of columns that a scan of the past adds to those of its relation.
ADDED: Final = "#"
#: The column of versions that is true where older ones of the same key may already be deleted.
OLDEST: Final = f"{ADDED}oldest"
#: The column with the commit in which a row was inserted.
COMMIT: Final = f"{ADDED}commit"
JOINS: Final = {
    "inner": "Join", "left": "Left Join", "right": "Right Join", "full": "Full Join", "semi": "Semi Join",
    "anti": "Anti Join",
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """A relation as the explained query reads it.

    what: the name of its kind in messages, like `materialized view`. view: for a view, its query. columns: the columns
    of that query's tree that the scan reads, in the scan's order. untold: columns of the scan that the query can't
    compute again, such as arrival times. late: the number of dropped late rows. inserted: if the rows of a view can be
    re-evaluated, returns the commits in which the rows of a scan that meet conditions were inserted, provided that
    there are as many as given. reconstructed: if the query of a view returns candidates, returns the query with past
    decisions as content, or None if these can't be reconstructed. missing: if all rows of a view are re-evaluated,
    returns the newest commits as of which no row of its query meets conditions, and the number of further ones. went:
    for a relation of changes, the ids of the column that is true for a deleted row, and of the column that identifies
    the row.
    """

    what: str
    name: str
    view: Explained | None = None
    columns: tuple[Column, ...] = ()
    untold: frozenset[str] = frozenset()
    late: int = 0
    inserted: Callable[[Scan | PastScan, Sequence[Scalar], int], list[Insertion]] | None = None
    reconstructed: Callable[[], Explained | None] | None = None
    missing: Callable[[Scan | PastScan, Sequence[Scalar]], tuple[list[Insertion], int]] | None = None
    went: tuple[str, str] | None = None


@dataclass(frozen=True)
class Insertion:
    """Equal rows of a view that were, or could have been, inserted in one commit.

    view: the view's query as of that commit; for commit 0 the current query. before: for changes, the query as of the
    previous epoch.
    """

    view: Explained
    commit: int
    rows: int
    before: Explained | None = None


@dataclass
class Origins:
    """Explains rows. read: describes a scan. names: the names of all columns. absent: explains why no row of a tree
    meets conditions.

    most: the number of rows shown for each step. room: the number of rows shown in total.
    """

    asker: Asker
    read: Callable[[Scan | PastScan], Read]
    names: Callable[[Explained], Names]
    most: int
    absent: Callable[[Explained, Node, Sequence[Scalar]], list[Step]]
    room: int = MOST_ROWS
    _wide: dict[int, Wide] = field(default_factory=dict)
    _kept: list[Node] = field(default_factory=list)

    def found(
        self, explained: Explained, tree: Node, conditions: Sequence[Scalar], *, was_output: bool = True
    ) -> Found:
        """The rows of `tree` that meet the conditions, each with its input rows.

        was_output: False for candidates that were rejected.
        """
        wide = self._widened(explained, tree)
        selected = filtered(wide.node, conditions)
        most = min(self.most, self.room)
        rows = self.asker.rows(selected, most + 1)
        cut = len(rows) > most
        equal_rows = Counter(tuple(row.items()) for row in rows[:most])
        self.room -= len(equal_rows)
        total = self.asker.count(selected) if cut else len(rows)
        made = [Row(self, wide, dict(key), copies, was_output) for key, copies in equal_rows.items()]
        return Found(made, tree, total, f"{most} of {counted(total)} are shown" if cut else None)

    def forgotten(self, read: Read, why: str) -> Error:
        """The error for a view whose content differs from the result of its query over the stored inputs."""
        return error(
            "HISTORY_GONE",
            f"rows of {read.what} {read.name} can't be explained",
            detail=f"The rows that are stored now don't give what it shows: {why}. Rows that were removed as too old, "
            "or came too late, are not kept.",
        )

    def undecided(self, explained: Explained, what: str, hint: str) -> Error:
        """The error for a row that can't be identified among several candidates."""
        return error(
            "HISTORY_GONE",
            f"a row of {explained.name} can't be explained",
            detail=f"{what}, and which of them counted when it came is not kept"
            f"{explained.decisions and ': '}{explained.decisions}.",
            hint=hint,
        )

    def _widened(self, explained: Explained, tree: Node) -> Wide:
        if id(tree) not in self._wide:
            self._kept.append(tree)  # keeps the object alive while its id is a key here
            self._wide[id(tree)] = Wide(explained, tree)
        return self._wide[id(tree)]


@dataclass(frozen=True)
class Found:
    """Rows of a tree. total: the number of all rows. cut: the text about rows that are not shown."""

    rows: list[Row]
    tree: Node
    total: int
    cut: str | None

    @property
    def steps(self) -> list[Step]:
        """A step for each row, with the row's input rows below it."""
        return self.extended()

    def extended(
        self, more: Callable[[Row], Sequence[Step]] | None = None, note: Callable[[Row], str] | None = None
    ) -> list[Step]:
        """The same steps, with more steps below each row, and a note."""
        found = []
        for row in self.rows:
            step = row.step(self.tree)
            for text in (note(row) if note else "", _times(row.copies) if row.copies > 1 else ""):
                step = step.noted(text)
            found.append(replace(step, below=[*step.below, *(more(row) if more else ())]))
        return found if self.cut is None else [*found, Step("…", detail=self.cut)]


@dataclass(frozen=True)
class Row:
    """One row with all its input rows, down to the nodes that combine several rows.

    copies: the number of equal rows. was_output: as in `Origins.found`.
    """

    origins: Origins
    wide: Wide
    cells: Cells
    copies: int
    was_output: bool

    @property
    def explained(self) -> Explained:
        return self.wide.explained

    @property
    def names(self) -> Names:
        return self.origins.names(self.explained)

    def within(self, tree: Node, conditions: Sequence[Scalar]) -> Found:
        """The row's input rows within a subtree."""
        return self.origins.found(self.explained, tree, conditions, was_output=self.was_output)

    def with_values(self, part: Scalar) -> str:
        """The text of a condition, with the values for which it was true."""
        own = sorted(part.columns & self.cells.keys())
        values = ", ".join(f"{self.names.get(i, i)} = {self.cells[i].shown}" for i in own)
        text = conditions_text([part], self.names)
        return f"{text} ({values})" if values and values != text else text

    def unmet(self, conditions: Sequence[Scalar]) -> list[Scalar]:
        """The conditions that are not true for the row."""
        values = self.origins.asker.values(conditions, self.cells)
        return [c for c, v in zip(conditions, values, strict=True) if v.text != "true"]

    @singledispatchmethod
    def step(self, node: Node) -> Step:
        """The step of a node for this row."""
        assert isinstance(node, Unary), type(node).__name__
        return self.step(node.input)

    # -- leaves -----------------------------------------------------------------------------------------------------

    @step.register
    def _(self, node: Scan | PastScan) -> Step:
        read = self.origins.read(node)
        row = row_json([c for c in node.outputs if not c.name.startswith(ADDED)], self.cells)
        if read.view is None:
            inserted = next((self.cells[c.id].text for c in node.outputs if c.name == COMMIT), None)
            return Step(read.what, read.name, row).noted(f"as of commit {inserted}" if inserted else "")
        view, values = read.view, picked(node.outputs, self.cells)
        there = self.origins.asker.count(filtered(node, equals(node.outputs, values)))
        if view.looks_back:
            return Step(read.what, read.name, row, below=self._as_of(read, node, there) or [])
        room = self.origins.room
        try:
            return Step(read.what, read.name, row, below=self._now(read, view, row, node, there))
        except Error as undecided:
            if not (view.decisions or read.untold) or undecided.condition != "HISTORY_GONE":
                raise
            for ask in (self._as_of, self._reconstructed):
                self.origins.room = room
                try:
                    below = ask(read, node, there)
                except Error:
                    continue
                if below is not None:
                    return Step(read.what, read.name, row, below=below)
            raise

    def _now(self, read: Read, view: Explained, row: str, node: Scan | PastScan, there: int) -> list[Step]:
        """The origin of a view's row, from current content. there: the number of equal rows that are present."""
        found = self._found(read, view, node, there)
        if found.total > there and (view.decisions or read.untold):
            what = f"{counted(found.total)} could be the row {row}, which is there {_times(there)}"
            hint = "A view that also selects a key of each relation has one candidate for each row."
            raise self.origins.undecided(view, what, hint)
        if found.total != there:
            why = f"they give the row {row} {_times(found.total)}, and it is there {_times(there)}"
            raise self.origins.forgotten(read, why)
        return found.steps

    def _found(self, read: Read, view: Explained, node: Scan | PastScan, rows: int) -> Found:
        """The rows of a view's query with the values of this row of the scan. rows: the expected number. If the number
        differs and the row has floats, nearly equal rows also count.
        """
        reconstructed = [(c, o) for c, o in zip(read.columns, node.outputs, strict=True) if o.id not in read.untold]
        columns, values = [c for c, _ in reconstructed], picked([o for _, o in reconstructed], self.cells)
        found = self.origins.found(view, view.tree, equals(columns, values))
        if found.total != rows and any(c.type.is_float for c in columns):
            found = self.origins.found(view, view.tree, equals(columns, values, nearly=True))
        return found

    def _reconstructed(self, read: Read, node: Scan | PastScan, there: int) -> list[Step] | None:
        """The origin of a view's row, from past decisions as content; None if these can't be reconstructed."""
        view = None if read.reconstructed is None else read.reconstructed()
        found = None if view is None else self._found(read, view, node, there)
        return found.steps if found is not None and found.total == there else None

    def _as_of(self, read: Read, node: Scan | PastScan, there: int) -> list[Step] | None:
        """The origin of a row of a re-evaluated view, as of the commit in which it was inserted; None if none of its
        rows can be re-evaluated.
        """
        if read.inserted is None:
            return None
        values, steps = picked(node.outputs, self.cells), list[Step]()
        for inserted in read.inserted(node, equals(node.outputs, values), there):
            if read.went is not None and self.cells[read.went[0]].text == "true":
                steps += self._went(read, node, inserted)
                continue
            found = self._found(read, inserted.view, node, inserted.rows)
            if found.total > inserted.rows and read.view is not None and read.view.waits:
                what = f"{counted(found.total)} could be {counted(inserted.rows)} that came in commit {inserted.commit}"
                hint = "A processor or view that also selects a key of each relation has one candidate for each row."
                raise self.origins.undecided(read.view, what, hint)
            if found.total != inserted.rows:
                why = f"commit {inserted.commit} gives {counted(found.total)}, and {counted(inserted.rows)} came in it"
                raise self.origins.forgotten(read, why)
            said = f"as of commit {inserted.commit}"
            steps += [step.noted(said) for step in found.steps]
        return steps

    def _went(self, read: Read, node: Scan | PastScan, inserted: Insertion) -> list[Step]:
        """The origin of a row that was deleted in a commit, and the reason of its deletion."""
        assert read.went is not None
        assert inserted.before is not None
        pairs = [(c, o) for c, o in zip(read.columns, node.outputs, strict=True) if o.id == read.went[1]]
        key = equals([c for c, _ in pairs], picked([o for _, o in pairs], self.cells))
        before = self.origins.found(inserted.before, inserted.before.tree, key)
        if not before.total or self.origins.asker.some(filtered(plain(inserted.view.tree, inserted.view), key)):
            raise self.origins.forgotten(
                read, f"commit {inserted.commit} and the epoch before don't give a row that went"
            )
        ended = self.origins.absent(inserted.view, inserted.view.tree, key)
        return [
            Step("before", detail=f"before commit {inserted.commit}", below=before.steps),
            Step("deleted", detail=f"as of commit {inserted.commit}", below=ended),
        ]

    @step.register
    def _(self, node: Arrivals) -> Step:
        return self.step(node.scan)

    @step.register
    def _(self, node: Values) -> Step:
        return Step("Values", row=row_json(node.outputs, self.cells))

    # -- row by row -------------------------------------------------------------------------------------------------

    @step.register
    def _(self, node: Filter) -> Step:
        text = ", ".join(self.with_values(p) for p in conjuncts(node.predicate))
        return Step("Filter", detail=text, below=[self.step(node.input)])

    @step.register
    def _(self, node: TimeFilter) -> Step:
        column = next(c for c in node.columns if c.id == node.column)
        bound = bound_cell(node.bound, self.explained.times, column)
        shown = "what is not known yet" if bound is None else bound.shown
        text = f"{self.names[column.id]} {node.comparison} {shown} ({self.cells[column.id].shown})"
        return Step("Time Filter", detail=text, below=[self.step(node.input)])

    @step.register
    def _(self, node: Unnest) -> Step:
        values = ", ".join(f"{self.names[c.id]} = {self.cells[c.id].shown}" for c in node.made)
        return Step("Unnest", detail=values, below=[self.step(node.input)])

    @step.register
    def _(self, node: Expand) -> Step:
        number = int(self.cells[node.made[-1].id].text or 0)
        keys = ", ".join(expression_text(node.keys[i], self.names) for i in node.sets[number])
        return Step("Grouping Set", detail=f"({keys})", below=[self.step(node.input)])

    @step.register
    def _(self, node: Repeat) -> Step:
        (times,) = self.origins.asker.values([node.times], self.cells)
        return Step("Repeat", detail=_times(int(times.text or 0)), below=[self.step(node.input)])

    # -- joins ------------------------------------------------------------------------------------------------------

    def has(self, side: Node) -> bool:
        """Whether the row contains a row of the join's side, not NULLs instead."""
        marker = self.wide.present.get(id(side))
        return marker is None or self.cells[marker.id].text == "true"

    @step.register
    def _(self, node: Join) -> Step:
        title = JOINS[node.kind] if node.keys or node.residual is not None else "Cross Join"
        if node.kind == "anti":
            return Step(title, below=[self.step(node.left), self._without(node, node.right)])
        if node.kind == "semi":
            return Step(title, detail=self._matched(node), below=[self.step(node.left), *self.partners(node)])
        below = [self.step(s) if self.has(s) else self._without(node, s) for s in (node.left, node.right)]
        paired = self.has(node.left) and self.has(node.right)
        return Step(title, detail=self._matched(node) if paired else None, below=below)

    def _matched(self, node: Join) -> str:
        return ", ".join([*map(self._pair, node.keys), *map(self.with_values, self._residual(node))])

    def _residual(self, node: Join) -> list[Scalar]:
        """The parts of a semi join's condition on values of right rows, without those about the commits as of which a
        row was present.
        """
        shown = [p for p in conjuncts(node.residual) if not all(i.startswith(MOMENT) for i in p.columns)]
        return [p for p in shown if node.kind != "semi" or p.columns <= node.left.ids]

    def _pair(self, pair: KeyPair) -> str:
        (value,) = self.origins.asker.values([pair.left], self.cells)
        return f"{conditions_text([as_predicate(pair)], self.names)} ({value.shown})"

    def _sought(self, node: Join, side: Node) -> tuple[list[Scalar], list[Cell], list[Scalar]]:
        """The requirements for a partner on `side`: keys with their values, and further conditions."""
        own = [k.right if side is node.right else k.left for k in node.keys]
        others = [k.left if side is node.right else k.right for k in node.keys]
        values = self.origins.asker.values(others, self.cells)
        cells = {i: c for i, c in self.cells.items() if i not in side.ids}
        return own, values, [filled(p, cells) for p in conjuncts(node.residual)]

    def _null_key(self, pairs: Sequence[KeyPair], keys: Sequence[Scalar], values: Sequence[Cell]) -> str | None:
        """The text for a key that is NULL and so equals nothing; None if no key is NULL."""
        for pair, key, value in zip(pairs, keys, values, strict=True):
            if value.text is None and not pair.null_safe:
                return f"{expression_text(key, self.names)} = NULL was looked for, and NULL equals nothing"
        return None

    def _without(self, node: Join, side: Node) -> Step:
        """The step for a side that has no row."""
        counting: list[Scalar] = []
        if node.partners is not None:
            own = {i: c for i, c in self.cells.items() if i not in side.ids}
            counting = [filled(node.partners[0 if side is node.right else 1], own)]
        if not gives_candidates(node):
            return self.lacking(node, side, counting)
        keys, values, rest = self._sought(node, side)
        there = [*(equal(k, v) for k, v in zip(keys, values, strict=True)), *rest, *counting]
        if self._null_key(node.keys, keys, values) or not self.origins.asker.some(
            filtered(plain(side, self.explained), there)
        ):
            return self.lacking(node, side, counting)
        sought = conditions_text(there, self.names) or "any values"
        if self.was_output:
            return Step("no partner", detail=f"no row with {sought} counted when it came; those that there are did not")
        partners = self.origins.found(self.explained, side, there, was_output=False)
        return Step("partners", detail=f"with {sought}", below=partners.steps)

    def lacking(self, node: Join, side: Node, more: Sequence[Scalar] = ()) -> Step:
        """The step with the reason why a side has no partner. more: further conditions for the partner."""
        keys, values, rest = self._sought(node, side)
        rest = [*rest, *more]
        asker = self.origins.asker
        tree = plain(side, self.explained)
        same = [equal(k, v) for k, v in zip(keys, values, strict=True)]
        sought = key_text(keys, values, self.names) or conditions_text(rest, self.names)
        nothing = self._null_key(node.keys, keys, values)
        if nothing is not None:
            return Step("no partner", detail=nothing)
        if keys and rest and asker.some(filtered(tree, same)):
            why = f"{sought} is there, but not with {conditions_text(rest, self.names)}"
            there = self.within(side, same)
            below = there.extended(note=lambda row: "not " + ", ".join(map(row.with_values, row.unmet(rest))))
            return Step("no partner", detail=why, below=below)
        if keys:
            why = f"no row with {sought}; {nearest_text(asker, tree, keys, values, self.names)}"
        else:
            why = f"no row with {sought}" if rest else "there are no rows"
        is_stored = isinstance(side, (Scan, PastScan)) and self.origins.read(side).view is None
        ended = [] if is_stored else self.origins.absent(self.explained, side, [*same, *rest])
        below = [step for step in ended if step.detail != why]
        return Step("no partner", detail=why, below=below)

    def partners(self, node: Join) -> list[Step]:
        """The right rows that match a left row."""
        keys, values, rest = self._sought(node, node.right)
        same = [equal(k, v) for k, v in zip(keys, values, strict=True)]
        found = self.within(node.right, [*same, *rest])
        if found.total > 1 and self.was_output and gives_candidates(node):
            what = f"{counted(found.total)} could be the partners of a row"
            hint = "A join that selects a key of the partner, in place of EXISTS or IN, keeps it."
            raise self.origins.undecided(self.explained, what, hint)
        return found.steps

    @step.register
    def _(self, node: AsofJoin) -> Step:
        asker, cells = self.origins.asker, self.cells
        left, right = (expression_text(v, self.names) for v in (node.left_value, node.right_value))
        keys = [self._pair(k) for k in node.keys]
        if self.has(node.right):
            values = asker.values([node.left_value, node.right_value], cells)
            text = f"{left} {node.comparison} {right}: the nearest to {values[0].shown} is {values[1].shown}"
            return Step(
                "Asof Join", detail=", ".join([*keys, text]), below=[self.step(node.left), self.step(node.right)]
            )
        return Step("Asof Join", below=[self.step(node.left), self.not_near(node)])

    def not_near(self, node: AsofJoin) -> Step:
        """The step with the reason why no row is nearest."""
        asker = self.origins.asker
        tree = plain(node.right, self.explained)
        keys = [k.right for k in node.keys]
        value, *values = asker.values([node.left_value, *(k.left for k in node.keys)], self.cells)
        same = [equal(k, v) for k, v in zip(keys, values, strict=True)]
        right = expression_text(node.right_value, self.names)
        own = {i: c for i, c in self.cells.items() if i not in node.right.ids}
        met = [filled(p, own) for p in on_the_right_side(node)]
        nothing = self._null_key(node.keys, keys, values)
        later = [filled(p, own) for p in on_the_right_side(replace(node, comparison="<"))]
        self._check_older(node, later, value)
        if nothing is not None:
            why = nothing
        elif gives_candidates(node) and asker.some(filtered(tree, met)):
            why = f"no row with {conditions_text(met, self.names)} counted when it came; those that there are did not"
        elif asker.some(filtered(tree, met)):
            why = f"the nearest row does not meet {conditions_text(conjuncts(node.residual), self.names)}"
        elif asker.some(filtered(tree, same)):
            low, high = asker.extremes(filtered(tree, same), node.right_value, value)
            near = ", ".join(c.shown for c in (low, high) if c.text is not None)
            why = f"no {right} with {value.shown} {node.comparison} {right}{near and '; the nearest: '}{near}"
        else:
            near = nearest_text(asker, tree, keys, values, self.names)
            why = f"no row with {key_text(keys, values, self.names)}; {near}"
        return Step("no partner", detail=why)

    def _check_older(self, node: AsofJoin, later: Sequence[Scalar], value: Cell) -> None:
        """Raises HISTORY_GONE for a row without version, if it may have had one. later: the condition for versions
        after its time.
        """
        tree = node.right
        oldest = next((c for c in tree.columns if c.name == OLDEST), None) if isinstance(tree, PastScan) else None
        if oldest is not None and self.origins.asker.some(filtered(tree, [*later, read(oldest)])):
            raise error(
                "HISTORY_GONE",
                f"a row of {self.explained.name} can't be explained",
                detail=f"It looked for the version of {value.shown}. Of the versions behind the watermarks only the "
                "newest of each key is kept, and that is a later one.",
            )

    # -- many rows to one -------------------------------------------------------------------------------------------

    @step.register
    def _(self, node: Aggregate) -> Step:
        values = picked(node.outputs, self.cells)
        conditions = [equal(k, v) for k, v in zip(node.keys, values, strict=False)]
        found = self.within(node.input, conditions)
        named = [self.names[c.id] for c in node.outputs]
        what = "Group" if node.keys and node.calls else "Aggregate" if node.calls else "Distinct"
        detail = f"of {counted(found.total)}"
        return Step(what, row=row_json(node.outputs, self.cells, named), detail=detail, below=found.steps)

    @step.register
    def _(self, node: Union) -> Step:
        number = int(self.cells[self.wide.parts[id(node)].id].text or 0)
        part = node.parts[number]
        found = self.within(part, equals(part.columns, picked(node.outputs, self.cells)))
        return Step("Union", detail=f"part {number + 1} of {len(node.parts)}", below=found.steps)

    # -- rounds -----------------------------------------------------------------------------------------------------

    @step.register
    def _(self, node: Named) -> Step:
        """A row of the previous round."""
        return _OfRound("row", row=row_json(node.outputs, self.cells), values=tuple(picked(node.outputs, self.cells)))

    @step.register
    def _(self, node: Recursion) -> Step:
        """The row with its inputs in its round; then, round by round, the inputs of these."""
        last = int(self.cells[self.wide.rounds[id(node)].id].text or 0)
        steps, wanted = list[Step](), [tuple(picked(node.outputs, self.cells))]
        for number in range(last, 0, -1):
            tree, found = of_round(node, number), list[Step]()
            for values in wanted:
                below = self.within(tree, equals(tree.columns, values)).steps
                cells = {c.id: v for c, v in zip(node.outputs, values, strict=True)}
                found += below if number == last else [Step("row", row=row_json(node.outputs, cells), below=below)]
            steps += found if number == last else [Step("round", detail=f"number {number}", below=found)]
            wanted = list(dict.fromkeys(values for step in found for values in _reached(step)))
            if not wanted:
                break
        return Step("Recursion", row=row_json(node.outputs, self.cells), detail=f"round {last}", below=steps)

    # -- orders -----------------------------------------------------------------------------------------------------

    def _of_partition(self, partition: Sequence[Scalar]) -> tuple[list[Scalar], str]:
        values = self.origins.asker.values(partition, self.cells)
        conditions = [equal(p, v) for p, v in zip(partition, values, strict=True)]
        return conditions, f" with {key_text(partition, values, self.names)}" if partition else ""

    @step.register
    def _(self, node: TopN) -> Step:
        if not node.order and node.limit is None:
            return self.step(node.input)
        below = [self.step(node.input)]
        if node.offset:
            conditions, _ = self._of_partition(node.partition)
            order = ordered_whole(node, node.input, self.explained).order
            before = TopN(filtered(node.input, conditions), (), order, node.offset)
            below.append(Step("rows before it", below=self.within(before, []).steps))
        return Step("Top N", detail=self.place(node), below=below)

    def place(self, node: TopN) -> str:
        """The position of the row in an order."""
        conditions, shown = self._of_partition(node.partition)
        rank, size = ranked(self.origins.asker, self.explained, node, conditions, self.cells)
        limit = f"limit {node.limit}" if node.limit is not None else "no limit"
        if node.offset:
            limit += f", offset {node.offset}"
        return f"number {rank} of {size}{shown} by {order_text(node.order, self.names) or 'all columns'}; {limit}"

    @step.register
    def _(self, node: Window) -> Step:
        conditions, shown = self._of_partition(node.partition)
        values = ", ".join(f"{self.names[c.id]} = {self.cells[c.id].shown}" for c in node.outputs)
        found = self.within(node.input, conditions)
        rows = Step("Partition", detail=f"{counted(found.total)}{shown}", below=found.steps)
        return Step("Window", detail=values, below=[self.step(node.input), rows])


def ranked(
    asker: Asker, explained: Explained, node: TopN, conditions: Sequence[Scalar], cells: Cells
) -> tuple[int, int]:
    """The number of a row in its partition (the rows that meet `conditions`), and the size of the partition."""
    below = filtered(plain(node.input, explained), conditions)
    order = ordered_whole(node, node.input, explained).order
    frame = WindowFrame("rows", None, 0)
    number = WindowCall("rank" if node.with_ties else "row_number", (), 0, None, order, frame, BIGINT)
    column = Column("#rank", "", BIGINT, False)
    numbered = filtered(Window(below, (), (number,), (column,)), equals(below.columns, picked(below.columns, cells)))
    rows = asker.rows(numbered, 1)
    return int(rows[0][column.id].text or 0) if rows else 0, asker.count(below)


@dataclass(frozen=True)
class _OfRound(Step):
    """A row of a round of a recursion. values: those of its columns."""

    values: tuple[Cell, ...] = ()


def _reached(step: Step) -> Iterator[tuple[Cell, ...]]:
    """The rows of the previous round among a step's inputs, without those that explain missing rows."""
    if isinstance(step, _OfRound):
        yield step.values
    for below in step.below if step.what != "no partner" else ():
        yield from _reached(below)


def counted(rows: int) -> str:
    """A number of rows, in words."""
    return "1 row" if rows == 1 else f"{rows} rows"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
