"""CREATE SINK, ALTER SINK … START and CONNECTOR WITH, SHOW SINKS.

RisingWave, "CREATE SINK", "Data delivery".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.binder import bind_query
from watersmeet.catalog import (
    MaterializedView,
    MessageFormat,
    Relation,
    Sink,
    SinkQuery,
    Source,
    Table,
    View,
    turned_into,
)
from watersmeet.catalog.parts import RowForm
from watersmeet.connectors.base.sources import rate_limit
from watersmeet.connectors.base.targets import delivery_of
from watersmeet.connectors.registry import connector_named, connector_of
from watersmeet.database.assignment import Target, check_given, check_types, named_targets
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, may_create, new_relation, schema_for
from watersmeet.database.reading import readable
from watersmeet.database.secrets import kept, kept_options, with_secrets
from watersmeet.database.sessions.context import Session, error_at, located, undefined_relation
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.alter import LimitSink
from watersmeet.dialects.tree.definitions import AlterSink, CreateMaterializedView, CreateSink, StartSink
from watersmeet.dialects.tree.statements import Name, Select
from watersmeet.dialects.tree.tokens import not_supported, quoted
from watersmeet.errors import Error, did_you_mean
from watersmeet.maintenance.views import bind_view, make, make_writing, may_share_key, with_conflicts
from watersmeet.session.clauses import with_connections
from watersmeet.session.status import SINK_FORMS, SINK_TYPES, sink_statuses
from watersmeet.sinkwriters.writers import SinkWriters, begin
from watersmeet.values.types import BIGINT, DOUBLE, VARCHAR, Field, Schema

#: Options of sinks of all connectors.
_OWN: Final = (
    "type", "primary_key", "on_conflict", "force_append_only", "snapshot", "force_compaction", "sink_rate_limit",
)  # fmt: skip

#: The options of a sink INTO a table.
_INTO: Final = ("type", "force_append_only", "on_error", "on_conflict")

#: An item of the option `on_conflict`.
_ORDER_ITEM: Final = re.compile(
    r"(?P<name>.+?)(?P<order>(?:\s+(?:asc|desc))?(?:\s+nulls\s+(?:first|last))?)", re.IGNORECASE
)

#: The option and the session variable that limit the rate of written rows.
RATE_LIMIT: Final = "sink_rate_limit"

_SHOWN: Final = (
    Field("name", VARCHAR),
    Field("connector", VARCHAR),
    Field("type", VARCHAR),
    Field("state", VARCHAR),
    Field("delivered_commit", BIGINT),
    Field("delivered_rows", BIGINT),
    Field("commits_behind", BIGINT),
    Field("rows_behind", BIGINT),
    Field("bytes_behind", BIGINT),
    Field("lag_seconds", DOUBLE),
    Field("detail", VARCHAR),
)


def create_sink(session: Session, statement: CreateSink) -> Result:
    """CREATE SINK … FROM relation or AS SELECT …: the sink writer has started when this returns."""
    session.require_definer("CREATE SINK")
    statement, connections = with_connections(session, statement)
    statement = with_secrets(session, statement)
    replaced = session.catalog.by_name(statement.name, schema_for(session, statement))
    with own_transaction(session):
        if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
            return Result("CREATE SINK")
        if statement.into is not None:
            _write_table(session, statement, statement.into)
            return Result("CREATE SINK")
        if not statement.options.get("connector"):
            raise error_at(
                statement,
                statement.name_span,
                "CONNECTOR_OPTION",
                "a sink needs a connector",
                hint="Write WITH (connector = …, …).",
            )
        with located(statement, statement.spans.get("connector", statement.name_span)):
            connector_named(statement.options["connector"].lower())
        # Created before its query, which has the sink's id as its owner.
        sink = new_relation(
            session, statement, Sink, (), delivers="", target_id=session.catalog.new_id(Sink), connector={}
        )
        session.put(sink)
        relation, depends_on = _delivered(session, statement, sink)
        sink = kept(session, _sink(statement, replace(sink, depends_on=(*depends_on, *connections)), relation))
        if _may_conflict(session, statement, relation):
            with located(statement, statement.spans.get("primary_key", statement.name_span)):
                sink = with_conflicts(session, sink, relation)
        with located(statement, statement.name_span, statement.spans):
            limits = {RATE_LIMIT: session.variables.get(RATE_LIMIT), **statement.options}
            sink = replace(sink, rate_limit=rate_limit(limits, RATE_LIMIT))
        if isinstance(replaced, Sink):
            sink = replace(sink, target_id=replaced.target_id, generation=replaced.generation + 1)
        delivery = delivery_of(sink)
        with located(statement, statement.spans.get("connector", statement.name_span), statement.spans):
            session.require_files({**sink.format.options, **sink.connector})
            connector = connector_of(delivery)
            if session.connectors != "checked":
                connector.check(delivery)
            elif connector.options is not None:
                connector.options.read(sink.connector).check()
        if session.connectors == "checked":
            sink = replace(sink, connector={"connector": "blackhole"})
        snapshot = _truth(statement, "snapshot", statement.options.get("snapshot", "true"))
        if not snapshot and statement.source is None:
            raise _refused(
                statement,
                "snapshot",
                "snapshot = 'false' needs a sink FROM a relation",
                "Create a materialized view of the query, and the sink FROM that.",
            )
        begin(session.database, sink.id, sink.generation, snapshot=snapshot)
        add(session, sink)
    return Result("CREATE SINK")


def _write_table(session: Session, statement: CreateSink, into: Name) -> None:
    """A sink INTO a table: merges the changes of its query into the table. The caller has a transaction open.

    RisingWave, "CREATE SINK INTO". Raises CONNECTOR_OPTION, READ_ONLY_RELATION, UNDEFINED_COLUMN, DATATYPE_MISMATCH,
    SYNTAX_ERROR; FEATURE_NOT_SUPPORTED for a sink that would read its own rows, and for changes that the table does not
    accept.
    """
    for option in ("format", *statement.options):
        if option in statement.spans and option not in _INTO:
            raise _refused(
                statement, option, f"a sink INTO a table has no option {option}", f"Its options are {', '.join(_INTO)}."
            )
    table = session.relation(into, statement)
    if type(table) is not Table or table.connector:
        what = f"{table.title}: its rows come from its connector" if table.connector else table.title
        raise error_at(
            statement, into.span, "READ_ONLY_RELATION", f"a sink can't write {what}", hint="INTO needs a table."
        )
    # Created before its query, which has the sink's id as its owner.
    sink = new_relation(session, statement, Sink, (), delivers="", target_id=session.catalog.new_id(Sink), connector={})
    session.put(sink)
    view = query_view(session, statement)
    found = bind_query(view.query, readable(session.catalog), view.text, session.dialect, needs_names=False)
    if table.id in session.catalog.upstream(found.depends_on, writers=True):
        raise error_at(
            statement,
            into.span,
            "FEATURE_NOT_SUPPORTED",
            "Creating such a sink will result in circular dependency.",
            detail=f"It reads rows of {table.title}, so each row that it writes could produce another row.",
        )
    targets = _targets(statement, into, table, len(found.columns))
    names = [t.column.name for t in targets]
    has_key = bool(table.primary_key) and set(table.primary_key) <= {*names}
    if "on_conflict" in statement.options:
        if not has_key:
            raise _refused(statement, "on_conflict", f"the sink does not write the primary key of {table.title}")
        key = [found.columns[names.index(n)].name for n in table.primary_key]
        view = _first_of_key(session, statement, view, key)
    bound = bind_view(session, replace(view, column_names=tuple(t.column.name for t in targets)))
    check_types(bound.relation.columns, targets, statement)
    hidden = turned_into(SinkQuery, _hidden(statement, sink, bound.relation), feeds=table.id)
    make_writing(session, replace(bound, relation=hidden))
    made = session.catalog.relations[hidden.id]
    assert isinstance(made, SinkQuery)
    form, force = _form_of(statement, made)
    if form == "debezium":
        raise _refused(statement, "type", "a sink INTO a table can't be of type debezium")
    if form == "upsert" and (not table.primary_key or table.append_only):
        raise _refused(
            statement,
            "type",
            "only append-only sinks can sink to a table without primary keys."
            if not table.primary_key
            else f'only append-only sinks can sink to the append-only table "{table.shown}"',
            "Add WITH (type = 'append-only', force_append_only = 'true'): deleted rows stay in the table then.",
        )
    session.put(replace(made, deletes=form == "upsert", skips=_skips(statement)))
    sink = replace(
        sink,
        columns=made.columns,
        delivers=made.id,
        depends_on=(*found.depends_on, table.id),
        format=MessageFormat(form),
        append_only=form == "plain",
        force_append_only=force and not made.append_only,
    )
    if form == "upsert" and has_key:
        sink = replace(sink, primary_key=table.primary_key)
        if may_share_key(session, made, sink.primary_key):
            with located(statement, into.span):
                sink = with_conflicts(session, sink, made)
    add(session, sink)


def _skips(statement: CreateSink) -> bool:
    """Whether rows that the table rejects are set aside. Raises CONNECTOR_OPTION."""
    asked = statement.options.get("on_error", "stop")
    if asked.lower() not in ("stop", "skip"):
        raise _refused(statement, "on_error", f'option on_error can\'t be "{asked}"', "It must be stop or skip.")
    return asked.lower() == "skip"


def _targets(statement: CreateSink, into: Name, table: Relation, count: int) -> tuple[Target, ...]:
    """The columns of the table to which the `count` columns of the query are written: the named or the first ones."""
    if statement.targets:
        targets = named_targets(table, statement.targets, statement)
        check_given(table, targets, statement)
    else:
        targets = tuple(Target(c, into.span) for c in table.written)
    if count > len(targets) or (statement.targets and count < len(targets)):
        raise error_at(
            statement,
            into.span,
            "SYNTAX_ERROR",
            f"the sink has {count} columns for {len(targets)} columns of {table.title}",
        )
    targets = targets[:count]
    lacking = [k for k in table.primary_key if k not in [t.column.name for t in targets]]
    if lacking:
        raise error_at(
            statement,
            into.span,
            "NOT_NULL_VIOLATION",
            f'the sink has no column for "{lacking[0]}", which is in the primary key of {table.title}',
        )
    return targets


def _delivered(session: Session, statement: CreateSink, sink: Sink) -> tuple[Relation, tuple[str, ...]]:
    """The relation whose changes the sink delivers, and the sink's dependencies. The result of a query is maintained by
    a hidden view.
    """
    if statement.source is not None and "on_conflict" not in statement.options:
        relation = session.relation(statement.source, statement)
        # The changes of a table of the session precede the epoch that finds keys which its rows share.
        watched = not relation.is_fed_by_circuit and _may_conflict(session, statement, relation)
        if relation.is_stored and not watched:
            return relation, (relation.id,)
    view = query_view(session, statement)
    if "on_conflict" in statement.options:
        view = _first_of_key(session, statement, view)
    bound = bind_view(session, view)
    hidden = _hidden(statement, sink, bound.relation)
    make(session, replace(bound, relation=hidden))
    return session.catalog.relations[hidden.id], hidden.depends_on


def _may_conflict(session: Session, statement: CreateSink, relation: Relation) -> bool:
    """Whether several rows of a relation may share the key of the sink."""
    form, _ = _form_of(statement, relation)
    if form == "plain":
        return False
    return may_share_key(session, relation, _key(statement, relation, form))


def _first_of_key(
    session: Session, statement: CreateSink, view: CreateMaterializedView, key: Sequence[str] = ()
) -> CreateMaterializedView:
    """The view with the first row of each key, in the order of the option `on_conflict`. key: by default that of the
    options or the relation. Raises UNDEFINED_COLUMN.
    """
    given = statement.options.get("type") if statement.format is None else SINK_TYPES[statement.format.rows]
    if given == SINK_TYPES["plain"]:
        raise _refused(
            statement, "on_conflict", "on_conflict needs a sink of type upsert or debezium, this is append-only"
        )
    found = bind_query(view.query, readable(session.catalog), view.text, session.dialect, needs_names=False)
    primary = () if statement.source is None else session.relation(statement.source, statement).primary_key
    key = key or _key_of(statement, found.columns, primary, "upsert")
    known = [c.name for c in found.columns]
    order = []
    for item in statement.options["on_conflict"].split(","):
        read = _ORDER_ITEM.fullmatch(item.strip())
        if read is None or read["name"] not in known:
            name = item.strip() if read is None else read["name"]
            raise error_at(
                statement,
                statement.spans.get("on_conflict"),
                "UNDEFINED_COLUMN",
                f'column "{name}" named in on_conflict does not exist',
                hint=did_you_mean(name, known) or f"The columns are: {', '.join(known)}.",
            )
        order.append(f"{quoted(read['name'])}{read['order']}")
    keys = ", ".join(map(quoted, key))
    below = _query_text(session, statement)
    text = f"SELECT DISTINCT ON ({keys}) * FROM ({below}) AS q ORDER BY {keys}, {', '.join(order)}"
    return replace(view, sql=_view_text(statement, text), query=_query(session, text))


def _query(session: Session, text: str) -> exp.Expression:
    (select,) = parse(text, session.dialect)
    assert isinstance(select, Select)
    return select.query


def _query_text(session: Session, statement: CreateSink) -> str:
    """The query with the content that a sink delivers. Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH."""
    if statement.source is None:
        return statement.query_text
    relation = session.relation(statement.source, statement)
    if not relation.ready:
        raise undefined_relation(readable(session.catalog), statement.source, statement)
    if not relation.is_stored and not isinstance(relation, (Source, View)):
        raise error_at(
            statement, statement.source.span, "CATALOG_TYPE_MISMATCH", f"{relation.title} can't be delivered by a sink"
        )
    return f"SELECT * FROM {quoted(relation.schema)}.{quoted(relation.name)}"


def _view_text(statement: CreateSink, query: str) -> str:
    return f"CREATE MATERIALIZED VIEW {quoted(statement.name)} AS {query}"


def query_view(session: Session, statement: CreateSink) -> CreateMaterializedView:
    """The view with the content that a sink delivers."""
    text = _query_text(session, statement)
    return CreateMaterializedView(
        text=statement.text,
        sql=_view_text(statement, text),
        span=statement.span,
        name=statement.name,
        name_span=statement.name_span,
        schema=statement.schema,
        query=_query(session, text) if statement.query is None else statement.query,
        emit=statement.emit,
    )


def _hidden(statement: CreateSink, sink: Sink, view: MaterializedView) -> SinkQuery:
    return turned_into(SinkQuery, view, name=f"?{statement.name}", hidden=True, owner=sink.id)


def _sink(statement: CreateSink, sink: Sink, relation: Relation) -> Sink:
    """The sink with its options."""
    options = statement.options
    made = statement.format or MessageFormat()
    form, force = _form_of(statement, relation)
    key = _key(statement, relation, form)
    rest = {n: v for n, v in options.items() if n not in _OWN}
    encoding = {n: v for n, v in made.options.items() if n != "force_append_only"}
    return replace(
        sink,
        columns=relation.columns,
        primary_key=key,
        append_only=form == "plain",
        delivers=relation.id,
        connector=rest,
        format=replace(made, rows=form, options=encoding),
        force_append_only=force and not relation.append_only,
    )


def _form_of(statement: CreateSink, relation: Relation) -> tuple[RowForm, bool]:
    """The form of written changes, and whether force_append_only omits deleted rows."""
    options = statement.options
    made = statement.format or MessageFormat()
    forced = options.get("force_append_only", made.options.get("force_append_only"))
    force = forced is not None and _truth(statement, "force_append_only", forced)
    form: RowForm
    if statement.format is not None:
        form = made.rows
    elif "type" in options:
        form = _form(statement, options["type"])
    else:
        form = "plain" if relation.append_only or force else "upsert"
    if force and form != "plain":
        raise _refused(
            statement, "force_append_only", f"force_append_only is for append-only sinks, this is {SINK_TYPES[form]}"
        )
    if form == "plain" and not relation.append_only and not force:
        raise _refused(
            statement,
            "format" if statement.format is not None else "type",
            f"the sink can't be append-only: rows of {_described(relation, statement)} are updated or deleted",
            "Add force_append_only = 'true': then deleted rows are omitted, and an updated row is written again.",
        )
    return form, force


def _described(relation: Relation, statement: CreateSink) -> str:
    return "the query" if isinstance(relation, SinkQuery) and statement.source is None else relation.title


def _form(statement: CreateSink, name: str) -> RowForm:
    if name not in SINK_FORMS:
        raise _refused(
            statement,
            "type",
            f'the type of a sink can\'t be "{name}"',
            did_you_mean(name, SINK_FORMS) or "It is append-only, upsert or debezium.",
        )
    return SINK_FORMS[name]


def _key(statement: CreateSink, relation: Relation, form: RowForm) -> tuple[str, ...]:
    """The key columns of a sink that delivers a relation. Raises the errors of `_key_of`."""
    return _key_of(statement, relation.columns, relation.primary_key, form)


def _key_of(statement: CreateSink, columns: Schema, primary: tuple[str, ...], form: RowForm) -> tuple[str, ...]:
    """The key columns: those of the option `primary_key`, else the primary key of the relation.

    Raises UNDEFINED_COLUMN; CONNECTOR_OPTION for a missing key that the sink needs.
    """
    text = statement.options.get("primary_key")
    if text is None:
        key = primary
    else:
        known = [c.name for c in columns]
        key = tuple(n.strip() for n in text.split(","))
        for name in key:
            if name not in known:
                raise error_at(
                    statement,
                    statement.spans.get("primary_key"),
                    "UNDEFINED_COLUMN",
                    f'column "{name}" named in primary_key does not exist',
                    hint=did_you_mean(name, known) or f"The columns are: {', '.join(known)}.",
                )
        if len(set(key)) < len(key):
            raise error_at(
                statement,
                statement.spans.get("primary_key"),
                "DUPLICATE_COLUMN",
                "a column appears twice in primary_key",
            )
    if form != "plain" and not key:
        raise _refused(
            statement,
            "format" if statement.format is not None else "type",
            f"a sink of type {SINK_TYPES[form]} needs a primary key",
            "Add primary_key = 'column, …', whose values no two rows share.",
        )
    return key


def _truth(statement: CreateSink, option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _refused(statement, option, f'option {option} can\'t be "{value}"', "It must be true or false.")
    return value.lower() == "true"


def _refused(statement: CreateSink, option: str, message: str, hint: str | None = None) -> Error:
    """The error CONNECTOR_OPTION at an option, or at the name of the sink if the option is not given."""
    span = statement.spans.get(option, statement.name_span)
    return error_at(statement, span, "CONNECTOR_OPTION", message, hint=hint)


def _altered(session: Session, statement: StartSink | LimitSink | AlterSink) -> Sink | None:
    """The named sink; None if it does not exist and the statement has IF EXISTS."""
    name = statement.name
    found = session.find(name)
    if found is None and statement.if_exists:
        session.notice(f'sink "{name.shown}" does not exist, skipping')
        return None
    if found is None:
        sinks = [r.shown for r in session.catalog.relations.values() if isinstance(r, Sink)]
        raise undefined_relation(session.catalog, name, statement, "sink", sinks)
    if not isinstance(found, Sink):
        raise error_at(statement, name.span, "CATALOG_TYPE_MISMATCH", f'"{found.shown}" is not a sink')
    return found


#: Endings of the options that name where a target has the rows that were delivered so far.
_PLACES: Final = (
    "connector", "topic", "subject", "stream", "table", "table.name", "database", "database.name", "schema.name",
    "bucket", "bucket_name", "path", "location", "warehouse.path",
)  # fmt: skip


def alter_sink(session: Session, statement: AlterSink) -> Result:
    """ALTER SINK name CONNECTOR WITH: other options of its target, which is opened again and continues at its offset.

    Raises CONNECTOR_OPTION for options that name another target, or values that the connector rejects.
    """
    session.require_definer("ALTER SINK")
    found = _altered(session, statement)
    if found is None:
        return Result("ALTER SINK")
    statement = with_secrets(session, statement)
    for name in statement.options:
        if not found.connector or name.endswith(tuple(f".{p}" for p in _PLACES)) or name in (*_PLACES, *_OWN):
            raise error_at(
                statement,
                statement.spans[name],
                "CONNECTOR_OPTION",
                f'option "{name}" of {found.title} can\'t be altered',
                hint="SET SINK_RATE_LIMIT changes the rate. CREATE OR REPLACE SINK delivers all rows again.",
            )
    made = replace(found, connector={**found.connector, **kept_options(session, statement.options)})
    with located(statement, statement.name.span, statement.spans):
        session.require_files(made.connector)
        if session.connectors != "checked":
            delivery = delivery_of(made)
            connector_of(delivery).check(delivery)
            with own_transaction(session):
                session.put(made)
    return Result("ALTER SINK")


def limit_sink(session: Session, statement: LimitSink) -> Result:
    """ALTER SINK name SET SINK_RATE_LIMIT: effective for the next rows."""
    session.require_definer("ALTER SINK")
    found = _altered(session, statement)
    if found is None:
        return Result("ALTER SINK")
    if not found.connector:
        raise not_supported("a rate limit of a sink INTO a table", statement.text, statement.limit_span)
    with located(statement, statement.limit_span):
        limit = rate_limit({RATE_LIMIT: statement.limit}, RATE_LIMIT)
    with own_transaction(session):
        session.put(replace(found, rate_limit=limit))
    return Result("ALTER SINK")


def start_sink(session: Session, statement: StartSink) -> Result:
    """ALTER SINK name START: a stopped sink resumes at its offset, a waiting one retries at once."""
    session.require_definer("ALTER SINK")
    session.require_no_transaction("ALTER SINK … START")
    found = _altered(session, statement)
    deliveries = session.database.service(SinkWriters)
    if found is not None and deliveries is not None:
        deliveries.restart(found.id)
    return Result("ALTER SINK")


def show_sinks(session: Session, sinks: Sequence[Relation]) -> Result:
    """A row for each sink: its target, its state, and its lag."""
    statuses = [s.to_dict() for s in sink_statuses(session, [s for s in sinks if isinstance(s, Sink)])]
    return typed_result("SHOW", _SHOWN, [tuple(s[column.name] for column in _SHOWN) for s in statuses])
