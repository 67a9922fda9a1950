"""Views get another query while other objects read them: ALTER [MATERIALIZED] VIEW … AS, CREATE OR REPLACE of a view,
or of a function that views call.

The view and the materialized views over it get new plans, and each is filled as a hidden view over the present content
of its inputs, beside live views. Operators that stay the same keep their state. Then one commit has the new definitions
and plans, and changes the content of each view by the difference. So the views keep their identity, grants, indexes,
sinks and subscriptions, and these receive only the rows that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.trees import exactly
from watersmeet.binder import BoundQuery, bind_query
from watersmeet.binder.sqlfunctions import checked_body
from watersmeet.catalog import (
    Catalog,
    Index,
    Known,
    MaterializedView,
    NamedSubscription,
    PausedQuery,
    Query,
    Relation,
    Sink,
    SinkConflicts,
    SinkQuery,
    SqlFunction,
    StoppedPump,
    Subscription,
    View,
)
from watersmeet.circuit.operators import Operator
from watersmeet.circuit.operators import Sink as SinkOperator
from watersmeet.database.definitions import is_same, schema_for
from watersmeet.database.filling import Bound, fill_at_once, join_order, joins_many, shares, undo, with_late_sides
from watersmeet.database.reading import check_running
from watersmeet.database.rebuild import proves_key, row_key_of, stored_query, tree_of, watermarks_of
from watersmeet.database.sessions.context import Session, depended_on, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.definitions import Create, CreateMaterializedView, CreateView, RedefineView
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, NotSupportedError, Span
from watersmeet.maintenance.views import begins, bind_view, moment, rows_left_out
from watersmeet.planner import assemble, compile_view
from watersmeet.runtime.plans import check_rebuild
from watersmeet.session.features.viewrefresh import end, hidden_twin, receivers, settle
from watersmeet.session.handlers import function_named
from watersmeet.session.statements.altering import altered
from watersmeet.values.types import Field, Schema, is_wider

_COMMAND: Final = "ALTER MATERIALIZED VIEW"

#: The views that can be planned again over another view.
_PLANNED: Final = (MaterializedView, SinkQuery, SinkConflicts, Subscription)


def redefine_view(session: Session, statement: RedefineView) -> Result:
    """ALTER MATERIALIZED VIEW … AS: the view has the rows of another query from one commit on.

    Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH, the errors of the query; DEPENDENT_OBJECTS with all objects that
    can't follow; FEATURE_NOT_SUPPORTED for views whose rows depend on the moment of their creation.
    """
    session.require_definer(_COMMAND)
    session.require_no_transaction(_COMMAND)
    view = altered(session, statement)
    if view is None:
        return Result(_COMMAND)
    if type(view) is View:
        _redefine_plain(session, statement)
        return Result("ALTER VIEW")
    if type(view) is not MaterializedView:
        raise error_at(
            statement, statement.name.span, "CATALOG_TYPE_MISMATCH", f'"{view.shown}" is not a materialized view'
        )
    name = statement.text[statement.name.span.start : statement.name.span.end]
    begin = f"CREATE MATERIALIZED VIEW {name} AS "
    with _moved(statement, statement.query.start - len(begin)):
        (created,) = parse(begin + statement.text[statement.query.start : statement.query.end], session.dialect)
        assert isinstance(created, CreateMaterializedView)
        bound = bind_view(session, created)
    _redefine_materialized(session, statement, statement.name.span, view, bound)
    return Result(_COMMAND)


def _redefine_plain(session: Session, statement: RedefineView) -> None:
    """ALTER VIEW … AS: as CREATE OR REPLACE VIEW."""
    name = statement.text[statement.name.span.start : statement.name.span.end]
    begin = f"CREATE OR REPLACE VIEW {name} AS "
    with _moved(statement, statement.query.start - len(begin)):
        (created,) = parse(begin + statement.text[statement.query.start : statement.query.end], session.dialect)
        function_named("views.create_view")(session, created)


@contextmanager
def _moved(statement: Statement, distance: int) -> Iterator[None]:
    """Moves the spans of errors into the text of the statement."""
    try:
        yield
    except Error as err:
        if err.span is not None:
            err.span = Span(max(err.span.start + distance, 0), max(err.span.end + distance, 0))
            err.sql = statement.text
        raise


def replace_view(session: Session, statement: CreateMaterializedView) -> None:
    """CREATE OR REPLACE of a materialized view that other objects read. Raises the same errors as `redefine_view`."""
    session.require_definer("CREATE")
    view = session.catalog.by_name(statement.name, schema_for(session, statement))
    assert isinstance(view, MaterializedView)
    if statement.into is not None or statement.paused:
        what = "INTO" if statement.into is not None else "PAUSED"
        raise not_supported(f"{what} of a view that other objects read", statement.text, statement.name_span)
    _redefine_materialized(session, statement, statement.name_span, view, bind_view(session, statement))


def _redefine_materialized(
    session: Session, statement: Statement, span: Span, view: MaterializedView, bound: Bound
) -> None:
    relations = session.catalog.relations.values()
    reasons = {
        "that writes a stream": bool(view.feeds),
        "that fills the cache of a dictionary": bool(bound.fills),
        "whose rows depend on the moment at which its query begins": begins(bound.tree),
        "that is paused": any(isinstance(r, PausedQuery) and r.owner == view.id for r in relations),
    }
    what = next((reason for reason, holds in reasons.items() if holds), None)
    if what:
        raise error_at(
            statement,
            span,
            "FEATURE_NOT_SUPPORTED",
            f"another query of a view {what} is not supported",
            hint="Drop the view and create it again, in one transaction.",
        )
    _check_columns(statement, span, view, bound.relation.columns)
    kept = {c.name for c in bound.relation.columns}
    gone = [c.name for c in view.columns if c.name not in kept]
    if not kept.isdisjoint(view.dropped):
        session.database.settle(frozenset({view.id}))  # no stored row has a value of the earlier column of that name
    dropped = tuple(name for name in (*view.dropped, *gone) if name not in kept)
    new = replace(bound.relation, append_only=view.append_only, dropped=dropped)
    redefine(session, statement, span, view, new, bound.tree)


def check_view(session: Session, statement: CreateView, old: Relation, new: Relation) -> None:
    """Checks that a plain view may replace another one.

    Raises DATATYPE_MISMATCH for missing or different columns, DEPENDENT_OBJECTS if a relation has been filled through
    the old view, INVALID_NAME if the new view would read itself.
    """
    catalog = session.catalog
    if old.id in catalog.upstream(new.depends_on):
        raise error_at(statement, statement.name_span, "INVALID_NAME", f"{old.title} would read itself")
    check_view_columns(statement, old, new)
    filled = [r for r in catalog.dependents(old.id) if not isinstance(r, View) or isinstance(r, StoppedPump)]
    if filled and not is_same(old, new):
        raise depended_on(
            statement,
            statement.name_span,
            f"replace {old.title}",
            (f"{r.reader} was filled through it" for r in filled),
            hint="CREATE OR REPLACE VIEW outside of a transaction computes them again.",
        )


def check_view_columns(statement: CreateView, old: Relation, new: Relation) -> None:
    """Raises DATATYPE_MISMATCH if a plain view lacks columns of the one that it replaces, or has other ones instead."""
    kept = new.columns[: len(old.columns)]
    for before, now in zip(old.columns, kept, strict=False):
        if (before.name, before.type) != (now.name, now.type):
            raise error_at(
                statement,
                statement.name_span,
                "DATATYPE_MISMATCH",
                f'{old.title} has the column "{before.name}" of type {before.type.sql}, the new one has '
                f'"{now.name}" of type {now.type.sql} there',
                hint="Columns can only be added at the end. For other changes, drop the view first.",
            )
    if len(kept) < len(old.columns):
        raise error_at(
            statement,
            statement.name_span,
            "DATATYPE_MISMATCH",
            f'{old.title} has the column "{old.columns[len(kept)].name}", the new one does not',
            hint="Columns can only be added at the end. For other changes, drop the view first.",
        )


def redefine(
    session: Session, statement: Statement, span: Span, view: Relation, new: Relation, tree: Node | None
) -> None:
    """Gives a view the query and the columns of `new`, and materialized views over it new plans, in one commit.

    tree: that of a materialized view. An error leaves everything unchanged. Raises DEPENDENT_OBJECTS,
    FEATURE_NOT_SUPPORTED, INVALID_NAME, and the errors of filling a view.
    """
    if view.id in session.database.catalog.upstream(new.depends_on):
        raise error_at(statement, span, "INVALID_NAME", f"{view.title} would read itself")
    check_running(session, new.depends_on, live=True)
    kept = {c.name for c in new.columns}
    comments = {name: text for name, text in view.comments.items() if name in kept}
    new = replace(
        new, id=view.id, name=view.name, schema=view.schema, since=view.since, comment=view.comment, comments=comments
    )
    following = _Following(session, new, tree)
    if following.problems:
        raise depended_on(
            statement,
            span,
            f"change {view.title}",
            following.problems,
            hint="Drop these first, and create them again.",
        )
    for missing in _run(session, following):
        session.notice(f"{view.title} lacks {missing}")
    _tell(session, [r for r in map(following.view, following.trees) if r.id != view.id])


def replace_function(session: Session, statement: Create, old: SqlFunction, new: SqlFunction) -> None:
    """CREATE OR REPLACE FUNCTION: functions and views that call it, and all that reads these views, have the new
    definition from one commit on. Computed columns of tables and sources keep the old one.

    An error leaves everything unchanged. Raises DEPENDENT_OBJECTS with all objects that can't follow.
    """
    catalog = session.catalog
    action, problems = f"replace function {old.shown}", list[str]()
    functions, moved = _calling_functions(catalog, old, new, problems)
    calling = [r for r in catalog.relations.values() if moved.keys() & set(r.functions) and not isinstance(r, Query)]
    views = [r for r in calling if isinstance(r, View) or type(r) in _PLANNED]
    if session.transaction is not None and views:
        hint = "CREATE OR REPLACE FUNCTION outside of a transaction computes them again."
        clauses = (f"{r.reader} calls it" for r in views)
        raise depended_on(statement, statement.name_span, action, clauses, hint=hint)
    following = None
    if views:
        following = _Following(session, None, None, functions, moved)
        problems += following.problems
    if problems:
        raise depended_on(
            statement, statement.name_span, action, problems, hint="Drop these first, and create them again."
        )
    for kept in calling:
        if kept not in views:
            session.notice(f"{kept.title} keeps the earlier definition of {old.shown}")
    if following is None:
        session.put_functions(functions)
        return
    for missing in _run(session, following):
        session.notice(f"views that call {old.shown} lack {missing}")
    _tell(session, list(map(following.view, following.trees)))


def _calling_functions(
    catalog: Catalog, old: SqlFunction, new: SqlFunction, problems: list[str]
) -> tuple[list[SqlFunction], dict[str, str]]:
    """The changes of functions, of which those follow that call the replaced one; and the new ids by the old ones.
    problems: gets a clause for each function that can't follow.
    """
    functions, moved = [replace(old, dropped=True), new], {old.id: new.id}
    waiting: list[SqlFunction] = []
    reached = {old.id}
    known = [f for f in catalog.functions.values() if not f.dropped and f.id != old.id]
    while more := [f for f in known if f.id not in reached and reached & set(f.functions)]:
        waiting += more
        reached |= {f.id for f in more}
    while waiting:
        ready = [f for f in waiting if not any(f is not g and g.id in f.functions for g in waiting)]
        for function in ready:
            waiting.remove(function)
            called = tuple(moved.get(i, i) for i in function.functions)
            try:
                seen = catalog.with_functions(functions).seen_in(replace(function, functions=called))
                made = checked_body(replace(function, functions=()), seen)
            except Error as err:
                problems.append(f"function {function.shown} can't be bound again: {err.message}")
                return functions, moved
            moved[function.id] = made.id
            functions += [replace(function, dropped=True), made]
    return functions, moved


def _run(session: Session, following: _Following) -> Iterable[str]:
    """Puts new definitions into effect in one commit. Returns what is missing of the history of their inputs."""
    database = session.database
    plans = following.plans(session)
    made: dict[str, str] = {}
    hidden: list[MaterializedView] = []
    operators: dict[str, Sequence[Operator]] = {}
    for relation_id, plan in plans.items():
        settle(session, plan)
        twin = hidden_twin(session, following.view(relation_id), made, len(made))
        made[relation_id] = twin.id
        *inner, sink = plan
        assert isinstance(sink, SinkOperator)
        operators[twin.id] = (*inner, replace(sink, relation_id=twin.id))
        hidden.append(replace(twin, ready=False, append_only=sink.append_only))
    try:
        lost = fill_at_once(session, hidden, operators) if hidden else {}
        relations = [
            with_late_sides(r, plans[r.id]) if r.id in plans else r for r in following.relations(database.catalog)
        ]
        database.redefine(relations, plans, made, following.functions)
    except BaseException:
        undo(session, set(made.values()))
        raise
    end(session, plans.keys(), made)
    return lost.values()


def _tell(session: Session, views: Iterable[Relation]) -> None:
    """A notice with the views that were computed again."""
    again = [r.title for r in views if r.is_named]
    if again:
        session.notice(f"{' and '.join(again)} {'were' if len(again) > 1 else 'was'} computed again")


def _check_columns(statement: Statement, span: Span, view: MaterializedView, now: Schema) -> None:
    """Raises FEATURE_NOT_SUPPORTED for columns whose values in stored rows can't be read as values of the new ones."""
    before = {c.name: c.type for c in view.columns}
    for column in now:
        kind = before.get(column.name, column.type)
        if kind != column.type and not is_wider(column.type, kind):
            raise error_at(
                statement,
                span,
                "FEATURE_NOT_SUPPORTED",
                f'another type of column "{column.name}" of {view.title} is not supported',
                detail=f"It has type {kind.sql}, and would get {column.type.sql}, which doesn't have all its values.",
                hint="Give the new column another name, or drop the view and create it again.",
            )


class _Following:
    """What follows from a new definition of a view, or of functions. problems: a clause for each object that can't
    follow. trees: those of the materialized views, inputs first.
    """

    def __init__(
        self,
        session: Session,
        new: Relation | None,
        tree: Node | None,
        functions: Sequence[SqlFunction] = (),
        moved: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """new, tree: the new view, with the tree of a materialized one. functions: the changed functions. moved: the
        ids of new functions by those of the old ones.
        """
        self._session = session
        self._before = session.database.catalog
        self.functions = functions
        self._with_functions = self._before.with_functions(functions)
        self._new, self._moved = new, moved
        self.problems: list[str] = []
        self._failed: set[str] = set()
        self._made: dict[str, Relation] = {} if new is None else {new.id: new}
        """The new definitions, inputs first."""
        self.trees: dict[str, Node] = {} if tree is None or new is None else {new.id: tree}
        calling = {r.id: r for r in self._before.relations.values() if self._follows(r)}
        readers = {**calling, **{r.id: r for r in self._before.dependents(*self._made, *calling)}}
        for reader in sorted(readers.values(), key=lambda r: (len(self._before.upstream([r.id])), r.id)):
            self._follow(reader)
        for relation_id in self.trees:
            before = self._before.relations[relation_id]
            if before.append_only and isinstance(before, MaterializedView):
                self.problems += [f"{r.title} has received rows that are final" for r in receivers(session, before)]

    def view(self, relation_id: str) -> MaterializedView:
        """The new definition of a materialized view."""
        found = self._made[relation_id]
        assert isinstance(found, MaterializedView)
        return found

    @property
    def catalog(self) -> Catalog:
        """The catalog with the new definitions."""
        return self._with_functions.redefined(self._made.values())

    def relations(self, catalog: Catalog) -> list[Relation]:
        """The new definitions for a catalog, inputs first. Readers load the content of views with other columns again.

        A view that never deleted a row may now have deleted some.
        """
        found: list[Relation] = []
        for relation in self._made.values():
            before = catalog.relations[relation.id]
            anew = before.append_only or [c.name for c in before.columns] != [c.name for c in relation.columns]
            since = catalog.version + 1 if anew else before.since
            found.append(replace(relation, append_only=False, since=since) if relation.has_rows else relation)
        return found

    def plans(self, session: Session) -> dict[str, Sequence[Operator]]:
        """The plans of the materialized views, by id. Raises FEATURE_NOT_SUPPORTED for a view over the changed one
        whose rows can't be computed again.
        """
        database = session.database
        progress = database.log.progress()
        running = {i: ops for i, ops in database.plans.producers.items() if i not in progress.failed}
        plans: dict[str, Sequence[Operator]] = {}
        catalog = self.catalog
        for relation_id, tree in self.trees.items():
            own = session.variables if self._new is not None and relation_id == self._new.id else None
            plans[relation_id] = compile_view(
                tree,
                self._made[relation_id],
                {**running, **plans},
                "bushy" if own is None else join_order(own),
                catalog=catalog.as_stored,
                share=True if own is None else shares(own),
                multiway=True if own is None else joins_many(own),
                late=progress.late,
                left_out=rows_left_out(session),
            )
            if own is None:
                check_rebuild(assemble([plans[relation_id]], database.buckets), progress, catalog.relations)
        return plans

    def _follows(self, relation: Relation) -> bool:
        """Whether a relation calls a replaced function. Running queries keep the old one until they end."""
        calls = not self._moved.keys().isdisjoint(relation.functions)
        return calls and (type(relation) in _PLANNED or isinstance(relation, View))

    def _follow(self, reader: Relation) -> None:
        if not self._failed.isdisjoint(reader.depends_on):
            self._failed.add(reader.id)
            return
        reader, problem = self._pinned(reader)
        if self._moved:
            reader = replace(reader, functions=tuple(self._moved.get(i, i) for i in reader.functions))
        name = self._before.relations[reader.owner].title if reader.owner else reader.reader
        if problem:
            pass
        elif isinstance(reader, PausedQuery):
            problem = "is paused"
        elif isinstance(reader, Query):
            problem = "is running; KILL QUERY ends it"
        elif type(reader) in _PLANNED and isinstance(reader, MaterializedView):
            problem = self._plan_again(reader)
        elif isinstance(reader, View) and not isinstance(reader, StoppedPump):
            problem = self._bind_again(reader)
        elif isinstance(reader, Index):
            problem = self._index_again(reader)
        elif isinstance(reader, (Sink, NamedSubscription)):
            below = reader.delivers if isinstance(reader, Sink) else reader.depends_on[0]
            problem = self._lacks(below)
            if not problem and isinstance(reader, Sink) and self._loses_key(reader):
                problem = f"relies on the key {', '.join(reader.primary_key)}, which several rows may now share"
        else:
            problem = f"is a {reader.role}"
        if problem:
            self._failed.add(reader.id)
            self.problems.append(f"{name} {problem}")

    def _pinned(self, reader: Relation) -> tuple[Relation, str]:
        """A reader whose text keeps naming the columns that it knew, also by `*`; and the reason why it can't."""
        first = self._new
        if first is None:
            return reader, ""
        before = self._before.relations[first.id]
        names, now = [[c.name for c in r.columns] for r in (before, first)]
        if first.id not in reader.depends_on or names == now:
            return reader, ""
        known = reader.known.get(first.id, Known(before.name, before.schema, tuple(names)))
        count = len(known.columns)
        if now[:count] == names[:count]:
            return replace(reader, known={**reader.known, first.id: known}), ""
        if (known.name, known.schema, *known.columns) != (before.name, before.schema, *names[:count]):
            return reader, "knows it by an earlier name"
        return replace(reader, known={i: k for i, k in reader.known.items() if i != first.id}), ""

    def _now(self, relation_id: str) -> Relation:
        return self._made.get(relation_id, self._before.relations[relation_id])

    def _lacks(self, relation_id: str) -> str:
        """Why an object that receives all columns of a relation can't follow; empty if it can."""
        before, now = self._before.relations[relation_id].columns, self._now(relation_id).columns
        for column, kept in zip(before, [*now, *[None] * len(before)], strict=False):
            if kept is None or (kept.name, kept.type) != (column.name, column.type):
                return f'receives the column "{column.name}" of type {column.type.sql}'
        return ""

    def _loses_key(self, sink: Sink) -> bool:
        """Whether rows may share the key of a sink that nothing watches, because none could until now."""
        if sink.conflicts or sink.force_append_only or not sink.primary_key or sink.format.rows == "plain":
            return False
        delivered = self._now(sink.delivers)
        names = {c.name: column.name for c, column in zip(sink.columns, delivered.columns, strict=False)}
        return not proves_key(delivered, [names[name] for name in sink.primary_key], self.catalog)

    def _index_again(self, index: Index) -> str:
        columns = self._now(index.depends_on[0]).columns
        names = {c.name for c in columns}
        lacking = [n for n in (*index.index_columns, *index.included) if n not in names]
        if lacking:
            return f'reads the column "{lacking[0]}"'
        self._made[index.id] = replace(index, columns=columns)
        return ""

    def _bind_again(self, view: View) -> str:
        (statement,) = parse(view.sql, view.dialect)[-1:]
        if not isinstance(statement, CreateView):
            return self._lacks(view.depends_on[0])
        catalog = self.catalog.seen_by(view)
        try:
            found = bind_query(
                statement.query, catalog, statement.text, view.dialect, column_names=statement.column_names
            )
        except NotSupportedError:  # a batch query; it reads columns by name
            unlike = [self._lacks(i) for i in view.depends_on if self._now(i) is not self._before.relations[i]]
            self._made[view.id] = view
            return next(filter(None, unlike), "")
        except Error as err:
            return _fails(err)
        columns = _kept(view.columns, found.columns)
        if isinstance(columns, str):
            return columns
        if len(found.columns) > len(columns):
            return f'would get the column "{next(c.name for c in found.columns if c not in columns)}"'
        self._made[view.id] = replace(view, columns=columns)
        return ""

    def _plan_again(self, view: MaterializedView) -> str:
        if view.feeds and not isinstance(view, SinkQuery):
            return "writes a stream"
        if isinstance(view, SinkConflicts):
            self.trees[view.id], self._made[view.id] = tree_of(view, self.catalog, 0), view
            return ""
        try:
            found = stored_query(view, self.catalog, moment(self._session))
        except Error as err:
            return _fails(err)
        assert found is not None, f"{view.title} has a query"
        if found.fills or begins(found.tree):
            return "has rows that depend on the moment at which its query began"
        columns = _kept(view.columns, found.columns)
        if isinstance(columns, str):
            return columns
        tree = _with_columns(found, columns)
        self.trees[view.id] = tree
        self._made[view.id] = replace(
            view,
            columns=columns,
            depends_on=found.depends_on,
            functions=found.functions,
            watermarks=watermarks_of(tree),
            row_key=row_key_of(tree),
        )
        if receivers(self._session, view):
            return self._lacks(view.id)
        return ""


def _fails(err: Error) -> str:
    return f"can't be planned again: {err.message}"


def _with_columns(query: BoundQuery, columns: Schema) -> Node:
    """The tree of a query with only some of its columns."""
    tree = query.tree
    own, age = tree.columns[: len(query.columns)], tree.columns[len(query.columns) :]
    by_name = {c.name: t for c, t in zip(query.columns, own, strict=True)}
    return exactly(tree, [*(by_name[c.name] for c in columns), *age])


def _kept(before: Iterable[Field], now: Sequence[Field]) -> tuple[Field, ...] | str:
    """The columns of a view after it was bound again: those that it had, of the same or wider types. Otherwise the
    reason why it can't keep them.
    """
    found: Mapping[str, Field] = {c.name: c for c in now}
    kept = []
    for column in before:
        new = found.get(column.name)
        if new is None:
            return f'would lose its column "{column.name}"'
        if new.type != column.type and not is_wider(new.type, column.type):
            return f'would get type {new.type.sql} for its column "{column.name}" of type {column.type.sql}'
        kept.append(new)
    return tuple(kept)
