"""Small statements that many clients run often: INSERT of one row of constants, and SELECT of the rows in which a
column equals a constant.

A plan is made once, from the bound statement, and kept for all statements that differ only in constants. It is valid
until the catalog or a setting that affects reading changes. With a plan, a statement is neither parsed nor
bound, and those of several sessions run together. Every other statement, and every value that SQL would convert or
reject, runs the usual way.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Catalog, MaterializedView, Relation, Table
from watersmeet.database.assignment import Target, data_type
from watersmeet.database.constraints import references_to
from watersmeet.database.grouping import NUMBER, Assigned, KeyChange, NotSmall, as_text, assign_to, takes_rows
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.reading import batch_query, described, readable, runs_on
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.cursors import Prepared
from watersmeet.database.sessions.sequences import numbered_columns, with_numbers
from watersmeet.database.transaction import Row, Transaction
from watersmeet.database.writing import add_rows
from watersmeet.dialects.tree.queries import is_default, is_holder, name_of, parameter_key, refused_character
from watersmeet.dialects.tree.statements import Delete, Insert, Select, Statement, Update
from watersmeet.errors import Error
from watersmeet.session.statements.dml import insert_targets, writable
from watersmeet.session.statements.preparing import seen
from watersmeet.store.changes import quoted
from watersmeet.unparsing.pushdown import constant_value, negated
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import BIGINT, Field, Schema, SqlType

#: The longest text of which the plan is kept, and the number of plans.
_MOST_CHARACTERS: Final = 2_000
_MOST_PLANS: Final = 1_024
#: The longest text of a prepared statement that is kept, and the characters of all of them.
_MOST_OF_PREPARED: Final = 1 << 15
_MOST_TOGETHER: Final = 1 << 18
#: The number of values of all kept plans together, from which on the oldest plan is removed.
_MOST_CELLS: Final = 1 << 18
#: The number of rows that the look-ups of a batch may find together.
_MOST_ROWS: Final = 10_000

#: A pattern: a word or quoted name, in which digits are no constants; a constant; a sign of a text that must be read as
#: a whole.
_TOKENS: Final = re.compile(
    r"""(?P<word>[^\W\d][\w]*+|"[^"]*+") | (?<![\w&"])'(?P<text>(?:[^'\\]++|'')*+)'
      | (?<![\w.])(?P<number>[0-9]++(?:\.[0-9]++)?)(?![\w.]) | (?P<other>--|/\*|[$\\`?@'"]|\d)""",
    re.VERBOSE,
)


def shape_of(text: str, parameters: Sequence[Any] = ()) -> tuple[str, list[object]] | None:
    """A text with marks instead of its constants and question marks, and their values; None for a text that must be
    read as a whole, and for parameters that are neither integers nor strings.
    """
    if len(text) > _MOST_CHARACTERS:
        return None
    given = list(reversed(parameters))
    parts: list[str] = []
    values: list[object] = []
    end = 0
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup
        if kind == "word":
            continue
        found = match[0]
        value = given.pop() if found == "?" and given else None
        if kind == "other" and not (type(value) is int or (type(value) is str and refused_character(value) is None)):
            return None
        parts.append(text[end : match.start()])
        end = match.end()
        if isinstance(value, int):
            parts.append("?-0" if value < 0 else "?0")
            values.append(abs(value))
        elif value is not None:
            parts.append("?'")
            values.append(value)
        elif kind == "text":
            parts.append("'")
            values.append(found[1:-1].replace("''", "'"))
        elif "." in found:
            parts.append("0.0")
            values.append(Decimal(found))
        else:
            parts.append("0")
            values.append(int(found))
    parts.append(text[end:])
    return None if given else ("".join(parts), values)


def _negated(value: object) -> object:
    return negated(value) if isinstance(value, (int, Decimal)) else value


@dataclass(frozen=True, slots=True)
class _Cell:
    """A value of an INSERT: that of a constant or parameter, or always the same (index None).

    assign: turns it into a value of the column, which takes NULL if it is nullable.
    """

    assign: Callable[[object], object]
    nullable: bool
    index: int | None = None
    negative: bool = False
    value: object = None

    def of(self, values: Sequence[object]) -> object:
        """The value of the column. Raises NotSmall."""
        value = self.value if self.index is None else values[self.index]
        if value is None:
            if self.nullable:
                return None
            raise NotSmall
        return self.assign(_negated(value) if self.negative else value)


@dataclass(eq=False)
class InsertPlan:
    """INSERT of rows. cells: for each row, those of the relation's columns in order. numbered: see
    `numbered_columns`.
    """

    catalog: Catalog
    relation: Relation
    cells: tuple[tuple[_Cell, ...], ...]
    numbered: Mapping[int, tuple[str, int]]

    @property
    def size(self) -> int:
        """The number of values."""
        return sum(map(len, self.cells))

    def given(self, values: Sequence[object]) -> list[Row] | None:
        """The rows with the values of a statement; None if it must run the usual way."""
        try:
            return [tuple(cell.of(values) for cell in cells) for cells in self.cells]
        except NotSmall:
            return None

    def rows(self, session: Session, given: Sequence[Row]) -> list[Row] | None:
        """The rows of `given` with the numbers of their sequences; None if the statement must run the usual way."""
        rows = [row for one in given if (row := with_numbers(session, one, self.numbered)) is not None]
        return rows if len(rows) == len(given) else None

    def add(self, session: Session, transaction: Transaction, given: Any, *, checks_later: bool = False) -> bool:
        """Adds rows to the open transaction. False if the plan is outdated, or a key must be checked at once.

        checks_later: whether a later statement may report that the key exists.
        """
        if self.catalog is not session.database.catalog:
            return False
        rows = self.rows(session, given)
        return rows is not None and add_rows(session, transaction, self.relation, rows, checks_later=checks_later)


class _AddsNothing:
    size = 1

    def add(self, session: Session, transaction: Transaction, given: Any, *, checks_later: bool = False) -> bool:
        """As in InsertPlan: it adds no row."""
        del session, transaction, given, checks_later
        return False


@dataclass(eq=False)
class LookupPlan(_AddsNothing):
    """SELECT of columns of the rows in which a column has a value.

    select: DuckDB's SQL without the values; its first column is the one that is looked up. columns, origins: those of
    the result. is_wide: whether it once found many rows; it then runs the usual way.
    """

    catalog: Catalog
    relation: Relation
    column: str
    cell: _Cell
    select: str
    columns: Schema
    origins: tuple[tuple[str, str] | None, ...]
    is_wide: bool = False

    def given(self, values: Sequence[object]) -> object:
        """The value that a statement looks up; None if it must run the usual way."""
        try:
            return self.cell.of(values)
        except NotSmall:
            return None


@dataclass(eq=False)
class ChangePlan(_AddsNothing):
    """UPDATE or DELETE of the row with a key. key: the cell of its value. sets: for each column of SET, the cell of the
    value, and the sign with which it is added to the column's value, or 0; None for DELETE.
    """

    catalog: Catalog
    relation: Relation
    key: _Cell
    sets: tuple[tuple[str, int, _Cell], ...] | None

    def given(self, values: Sequence[object]) -> tuple[object, Sequence[Assigned] | None] | None:
        """The key and the values of SET; None if the statement must run the usual way."""
        try:
            sets = [Assigned(name, cell.of(values), sign, cell.assign) for name, sign, cell in self.sets or ()]
            return self.key.of(values), None if self.sets is None else sets
        except NotSmall:
            return None

    def change(self, session: Session, given: Any) -> KeyChange:
        """The change with the result of `given`."""
        return KeyChange(session, self.catalog, self.relation, *given)


Plan = InsertPlan | LookupPlan | ChangePlan


class Plans:
    """The plans of statements, for all sessions of a server. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Catalog | None, Plan | None]] = {}
        self._prepared: dict[Hashable, Prepared] = {}
        self._lock = threading.Lock()

    def of_text(
        self, session: Session, text: str, parameters: Sequence[Any] = ()
    ) -> tuple[Plan, Sequence[object]] | None:
        """The plan of a statement, and its constants; None if there is none (yet)."""
        shape = shape_of(text, parameters)
        if shape is None:
            return None
        found = self._find(session, _text_key(*shape))
        return None if found is None else (found, shape[1])

    def of_prepared(self, session: Session, prepared: Prepared) -> Plan | None:
        """The plan of a prepared statement; None if there is none (yet)."""
        return self._find(session, _prepared_key(prepared))

    def prepared_before(self, session: Session, text: str, oids: Hashable) -> Prepared | None:
        """The prepared statement of a text, if a session has prepared it in the same state of the catalog."""
        found = self._prepared.get(_whole_key(session, (text, oids)))
        if found is None or found.described is None or found.described != seen(session):
            return None
        return replace(found)

    def note_prepare(self, session: Session, text: str, oids: Hashable, prepared: Prepared) -> None:
        """Keeps a prepared statement for `prepared_before`, and makes a plan for an INSERT of several rows."""
        query = prepared.statement.query if isinstance(prepared.statement, Insert) else None
        if isinstance(query, exp.Values) and len(query.expressions) > 1:
            self._note(session, _prepared_key(prepared), lambda: _plan_of_prepared(session, prepared), at_once=True)
        if isinstance(prepared.statement, (Insert, Select, Update, Delete)) and len(text) <= _MOST_OF_PREPARED:
            with self._lock:
                self._prepared[_whole_key(session, (text, oids))] = replace(prepared)
                sizes = [len(p.text) for p in self._prepared.values()]
                while len(sizes) > _MOST_PLANS or sum(sizes) > _MOST_TOGETHER:
                    del self._prepared[next(iter(self._prepared))], sizes[0]

    def note_text(self, session: Session, text: str, statement: Statement, parameters: Sequence[Any] = ()) -> None:
        """Makes a plan for a statement that ran without one, if it is not the first of its shape."""
        shape = shape_of(text, parameters) if isinstance(statement, (Insert, Select, Update, Delete)) else None
        if shape is not None:
            self._note(session, _text_key(*shape), lambda: _plan_of(session, statement, _Constants(shape[1])))

    def note_prepared(self, session: Session, prepared: Prepared) -> None:
        """Makes a plan for a prepared statement that was bound without one, if it was bound before."""
        if isinstance(prepared.statement, (Insert, Select, Update, Delete)):
            self._note(session, _prepared_key(prepared), lambda: _plan_of_prepared(session, prepared))

    def _find(self, session: Session, key: Hashable) -> Plan | None:
        found = self._known.get(_whole_key(session, key))
        return None if found is None or found[0] is not session.database.catalog else found[1]

    def _note(self, session: Session, key: Hashable, make: Callable[[], Plan | None], *, at_once: bool = False) -> None:
        if not session.variables.is_utc or (session.transaction is not None and session.transaction.definitions):
            return
        whole, catalog = _whole_key(session, key), session.database.catalog
        known = self._known.get(whole)
        if known is not None and known[0] is catalog:
            return
        made = (None, None) if known is None and not at_once else (catalog, make())
        with self._lock:
            self._known[whole] = made
            if len(self._known) > _MOST_PLANS or sum(p.size for _, p in self._known.values() if p) > _MOST_CELLS:
                del self._known[next(iter(self._known))]


def _text_key(shape: str, values: Sequence[object]) -> Hashable:
    return shape, len(values)


def _prepared_key(prepared: Prepared) -> Hashable:
    return prepared.text, prepared.parameters


def _whole_key(session: Session, key: Hashable) -> Hashable:
    """A key with all that determines how a statement is read, besides the catalog."""
    variables, own = session.variables, session.temporaries.schema
    return key, session.dialect, variables.get("search_path"), own, variables.zone, session.role, session.user


class _Constants:
    """The constants of a text, in its order. Each must be a value of the statement."""

    def __init__(self, values: Sequence[object]) -> None:
        self._values = values
        self._used = 0

    def cell(self, node: exp.Expression, make: Callable[..., _Cell]) -> _Cell | None:
        """The cell of a node of the tree; None if it is no constant of the text."""
        negative = isinstance(node, exp.Neg)
        inner = node.this if negative else node
        if not isinstance(inner, exp.Literal) or self._used == len(self._values):
            return None
        index, value = self._used, self._values[self._used]
        self._used += 1
        written = str(inner.name)
        same = value == written if inner.is_string else str(value) == written
        if inner.is_string != isinstance(value, str) or not same or (negative and inner.is_string):
            return None
        return make(index=index, negative=negative)

    def are_alike(self, rows: Sequence[exp.Expression]) -> bool:
        """Whether each value is read as if its row was the only one."""
        return len(rows) == 1

    def are_used(self) -> bool:
        """Whether the statement has no other constant."""
        return self._used == len(self._values)


class _Marks:
    """The parameters of a prepared statement."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def cell(self, node: exp.Expression, make: Callable[..., _Cell]) -> _Cell | None:
        """The cell of a node of the tree; None if it is neither a parameter nor a constant."""
        if not is_holder(node):
            negative = isinstance(node, exp.Neg)
            value = _literal_value(node.this if negative else node)
            return None if value is None else make(value=value, negative=negative)
        key = parameter_key(node)
        return make(index=self._prepared.numbers[key] - 1) if isinstance(key, int) else None

    def are_alike(self, rows: Sequence[exp.Expression]) -> bool:
        """Whether each value is read as if its row was the only one: each column consists of parameters of one type."""
        if len(rows) == 1:
            return True
        columns = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in rows]
        if len({len(row) for row in columns}) > 1 or not all(is_holder(node) for row in columns for node in row):
            return False
        return all(len({self._kind(node) for node in column}) == 1 for column in zip(*columns, strict=True))

    def _kind(self, node: exp.Expression) -> SqlType | None:
        key = parameter_key(node)
        return self._prepared.parameters[self._prepared.numbers[key] - 1].kind if isinstance(key, int) else None

    def are_used(self) -> bool:
        """Whether the statement needs nothing else; a parameter may occur twice."""
        return True


def _literal_value(node: exp.Expression) -> object:
    """The value of a literal; None for others."""
    if not isinstance(node, exp.Literal):
        return None
    written = str(node.name)
    if node.is_string:
        return written
    if not NUMBER.fullmatch(written):
        return None
    return Decimal(written) if "." in written else int(written)


def _plan_of_prepared(session: Session, prepared: Prepared) -> Plan | None:
    assert prepared.statement is not None
    if isinstance(prepared.statement, Select):
        return _lookup_of_prepared(session, prepared)
    return _plan_of(session, prepared.statement, _Marks(prepared))


def _plan_of(session: Session, statement: Statement, sources: _Constants | _Marks) -> Plan | None:
    try:
        if isinstance(statement, Insert):
            return _insert_plan(session, statement, sources)
        if isinstance(statement, (Update, Delete)):
            return _change_plan(session, statement, sources)
        if isinstance(statement, Select) and isinstance(sources, _Constants):
            return _lookup_plan(session, statement, sources)
    except Error:
        pass  # the statement raises it again
    return None


def _insert_plan(session: Session, statement: Insert, sources: _Constants | _Marks) -> InsertPlan | None:
    query = statement.query
    parts = {n for n, v in query.args.items() if v}
    if session.dialect != DEFAULT_DIALECT or not isinstance(query, exp.Values) or parts != {"expressions"}:
        return None
    if _has_more(statement, Insert, ("table", "columns", "query")) or not sources.are_alike(query.expressions):
        return None
    relation = writable(session, statement.table, statement, "insert into")
    rights = session.rights
    if references_to(session.catalog, relation.id):
        return None
    if not (takes_rows(relation) and rights.may("INSERT", relation.id) and rights.may("UPDATE", relation.id)):
        return None
    listed = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in query.expressions]
    targets = insert_targets(relation, statement)
    targets = targets if statement.columns else targets[: len(listed[0])]
    found = [_cells_of(relation, nodes, targets, sources) for nodes in listed]
    rows = [cells for cells in found if cells is not None]
    if len(rows) != len(found) or not sources.are_used():
        return None
    numbered = numbered_columns(relation, rows[0])
    given = {t.column.name for t in targets}
    for column in relation.columns:
        lacks = column.name not in given and column.name not in relation.serials
        if lacks and (column.name in relation.defaults or not column.nullable):
            return None
    if numbered is None:
        return None
    missing = _Cell(as_text, nullable=True)
    cells = tuple(tuple(row.get(c.name, missing) for c in relation.columns) for row in rows)
    return InsertPlan(session.database.catalog, relation, cells, numbered)


def _cells_of(
    relation: Relation, nodes: Sequence[exp.Expression], targets: Sequence[Target], sources: _Constants | _Marks
) -> dict[str, _Cell] | None:
    """The cells of the columns for which a row has values; None if the statement must run the usual way."""
    if len(targets) != len(nodes) or any(t.path for t in targets):
        return None
    cells: dict[str, _Cell] = {}
    for node, target in zip(nodes, targets, strict=True):
        cell = _cell_of(node, target.column, relation.declared.get(target.column.name), sources)
        if cell is None:
            return None
        cells[target.column.name] = cell
    return cells


def _change_plan(session: Session, statement: Update | Delete, sources: _Constants | _Marks) -> ChangePlan | None:
    is_update = isinstance(statement, Update)
    known = ("table", "where", "assignments")
    if session.dialect != DEFAULT_DIALECT or statement.where is None or _has_more(statement, type(statement), known):
        return None
    relation = writable(session, statement.table, statement, "update" if is_update else "delete from", changing=True)
    may = session.rights.may
    if not (takes_rows(relation) and may("UPDATE" if is_update else "DELETE", relation.id)):
        return None
    others = relation.stored or relation.connector or relation.uniques or references_to(session.catalog, relation.id)
    if others or not may("SELECT", relation.id) or len(relation.primary_key) != 1:
        return None
    sets: list[tuple[str, int, _Cell]] = []
    for name, value in statement.assignments if isinstance(statement, Update) else ():
        made = _assigned(relation, name.name, value, sources)
        if made is None or made[0] in (relation.primary_key[0], *(column for column, _, _ in sets)):
            return None
        sets.append(made)
    where = statement.where.this if isinstance(statement.where, exp.Where) else statement.where
    key = relation.column(relation.primary_key[0])
    if not isinstance(where, exp.EQ) or not _is_column(where.this, key.name) or relation.declared.get(key.name):
        return None
    if not key.type.is_integer and key.type.name != "varchar":
        return None
    cell = _cell_of(where.expression, replace(key, nullable=False), None, sources)
    if cell is None or not sources.are_used():
        return None
    return ChangePlan(session.database.catalog, relation, cell, tuple(sets) if is_update else None)


def _assigned(
    relation: Relation, name: str, value: exp.Expression, sources: _Constants | _Marks
) -> tuple[str, int, _Cell] | None:
    """A column of SET, with the value that it gets, or that is added to it."""
    column = next((c for c in relation.columns if c.name == name and not is_default(value)), None)
    if column is None or column.name in relation.serials:
        return None
    sign = {exp.Add: 1, exp.Sub: -1}.get(type(value), 0)
    if sign:
        added = column.type.is_integer or column.type.name == "double precision"
        if not added or not _is_column(value.this, name):
            return None
        value = value.expression
    cell = _cell_of(value, column, relation.declared.get(name), sources)
    return None if cell is None else (name, sign, cell)


def _is_column(node: exp.Expression, name: str) -> bool:
    return isinstance(node, exp.Column) and not node.args.get("table") and name_of(node.this) == name


def _has_more(statement: Statement, kind: type[Statement], known: Sequence[str]) -> bool:
    """Whether a statement has a clause besides the known ones."""
    own = kind.__dataclass_fields__.keys() - Statement.__dataclass_fields__.keys()
    return any(getattr(statement, name) not in (None, (), False, "") for name in own - set(known))


def _cell_of(
    node: exp.Expression, column: Field, declared: Declared | None, sources: _Constants | _Marks
) -> _Cell | None:
    kind, nullable, assign = column.type, column.nullable, assign_to(column.type, declared)
    if assign is None:
        return None
    if type(node) is exp.Cast and node.to == data_type(kind):
        node = node.this
    if type(node) is exp.Null:
        return _Cell(assign, nullable)
    if type(node) is exp.Boolean:
        return _Cell(assign, nullable, value=bool(node.this))
    return sources.cell(node, lambda **places: _Cell(assign, nullable, **places))


def _lookup_plan(session: Session, statement: Select, constants: _Constants) -> LookupPlan | None:
    def cell(assign: Callable[[object], object], node: exp.Expression) -> _Cell | None:
        found = constant_value(node)
        while isinstance(node, exp.Paren):
            node = node.this
        made = constants.cell(node, lambda **places: _Cell(assign, nullable=False, **places))
        return made if type(found) in (int, str) and constants.are_used() else None

    return _lookup(session, statement, cell)


def _lookup_of_prepared(session: Session, prepared: Prepared) -> LookupPlan | None:
    if len(prepared.parameters) != 1 or len(prepared.numbers) != 1:
        return None
    kind = prepared.parameters[0].kind
    null: exp.Expression = exp.null() if kind is None else exp.Cast(this=exp.null(), to=data_type(kind))
    statement = prepared.bound([null])

    def cell(assign: Callable[[object], object], node: exp.Expression) -> _Cell | None:
        while isinstance(node, (exp.Paren, exp.Cast)):
            if isinstance(node, exp.Cast) and not _keeps(node.to, assign):
                return None
            node = node.this
        return _Cell(assign, nullable=False, index=0) if isinstance(node, exp.Null) else None

    try:
        return _lookup(session, statement, cell) if isinstance(statement, Select) else None
    except Error:
        return None


def _keeps(kind: exp.DataType, assign: Callable[[object], object]) -> bool:
    """Whether a cast to a type changes no value that is looked up."""
    if assign is as_text:
        return bool(kind.is_type(exp.DataType.Type.VARCHAR, exp.DataType.Type.TEXT))
    return bool(kind.is_type(*exp.DataType.SIGNED_INTEGER_TYPES))


def _lookup(
    session: Session,
    statement: Select,
    cell: Callable[[Callable[[object], object], exp.Expression], _Cell | None],
) -> LookupPlan | None:
    if runs_on(session, statement.query) or _has_more(statement, Select, ("query",)):
        return None
    query = batch_query(session, statement.query, statement.text)
    only = query.only
    if only is None or query.topics or query.system or query.past or query.functions or len(query.depends_on) != 1:
        return None
    relation = session.catalog.relations[only.relation_id]
    is_read = isinstance(relation, MaterializedView) or type(relation) is Table
    if not is_read or relation.is_external or relation.staged or query.named != (relation.id,):
        return None
    assign = assign_to(BIGINT) if only.column.type.is_integer else None
    assign = as_text if only.column.type.name == "varchar" and not only.column.type.labels else assign
    made = None if assign is None else cell(assign, only.constant)
    if made is None:
        return None
    if any(d.name == "bpchar" for d in relation.declared.values()):
        return None  # results show blanks that are not stored
    names = ", ".join(quoted(n) for n in (only.column.name, *only.names))
    select = f"SELECT {names} FROM {quoted(relation.shown)} WHERE {quoted(only.column.name)} IN "
    return LookupPlan(
        session.database.catalog, relation, only.column.name, made, select, query.columns, tuple(query.origins)
    )


@dataclass(eq=False)
class Lookup:
    """A look-up of a value. outdated: whether it was not done, and must run the usual way."""

    session: Session
    plan: LookupPlan
    value: object
    outdated: bool = False


@dataclass(frozen=True)
class Found:
    """The rows of several look-ups of one plan, with the numbers of the rows of each value."""

    lookups: Sequence[Lookup]
    columns: Schema
    rows: pa.Table
    places: Mapping[object, Sequence[int]]


def look_up(database: OpenDatabase, lookups: Sequence[Lookup]) -> list[Found]:
    """The rows of look-ups; those of one plan are as of one moment."""
    groups: dict[tuple[str, str], list[Lookup]] = {}
    catalog = database.catalog
    failed = database.log.progress().failed
    for one in lookups:
        relation, content = one.plan.relation, database.content
        one.outdated = (
            one.plan.catalog is not catalog
            or one.plan.is_wide
            or relation.id in failed
            or not content.finds(relation.id, one.plan.column)
        )
        if not one.outdated:
            groups.setdefault((relation.id, one.plan.select), []).append(one)
    return [found for group in groups.values() if (found := _found(database, catalog, group)) is not None]


def _found(database: OpenDatabase, catalog: Catalog, group: Sequence[Lookup]) -> Found | None:
    plan = group[0].plan
    values = dict.fromkeys(one.value for one in group)
    listed = ", ".join(str(v) if isinstance(v, int) else _quoted_text(str(v)) for v in values)
    sql = f"{plan.select}({listed})"
    table = database.content.look_up(readable(catalog), plan.relation.id, plan.column, sql, _MOST_ROWS)
    if table.num_rows > _MOST_ROWS:
        for one in group:
            one.plan.is_wide = one.outdated = True
        return None
    places: dict[object, list[int]] = {}
    for number, value in enumerate(table.column(0).to_pylist()):
        places.setdefault(value, []).append(number)
    columns, rows = described(table.remove_column(0), plan.columns)
    return Found(group, columns, rows, places)


def _quoted_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
