"""ALTER and DROP of relations, also of their connectors (CONNECTOR WITH, REFRESH SCHEMA);

Views continue unchanged: their plans and files refer to relations by id, and to columns by their first names. The text
of a view stays as written. The catalog stores the names that the text uses (`Relation.known`), so that `*` keeps its
columns and names keep their meaning, as in PostgreSQL. SHOW CREATE adds the new names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from watersmeet.capture.capturing import drop_captured
from watersmeet.catalog import (
    ARRIVAL,
    Index,
    Input,
    MaterializedView,
    MessageFormat,
    PushedTable,
    QuerySource,
    Relation,
    Source,
    Table,
    View,
    one,
)
from watersmeet.connectors.registry import check_connector
from watersmeet.database.assignment import default_value
from watersmeet.database.committing import own_transaction, put_altered
from watersmeet.database.definitions import (
    alter_indexes,
    check_folded,
    is_called,
    kind_word,
    named,
    note_names,
    reference_to_column,
    remove,
    undefined_schema,
    used_instead,
    with_column,
    with_column_called,
    with_dependents,
    with_name,
    without_column,
)
from watersmeet.database.reading import lending, rows_read
from watersmeet.database.rowchecks import check_fed_types, kept
from watersmeet.database.secrets import kept_options, with_secrets
from watersmeet.database.sessions.context import Session, error_at, located, sentence, undefined_column
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import schema_meant, schema_shown
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.definitions import (
    AddColumn,
    Alter,
    AlterConnector,
    AlterFormat,
    AlterQuery,
    AlterWithoutEffect,
    CreateRelation,
    Drop,
    DropColumn,
    RefreshSchema,
    RenameColumn,
    RenameRelation,
    SetSchema,
    SwapNames,
)
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Span
from watersmeet.formats.registry import KEPT_SCHEMA
from watersmeet.session.clauses import remove_sequences, with_schema_columns
from watersmeet.session.features.webhooks import check_read_columns, reads_field
from watersmeet.session.handlers import function_named
from watersmeet.values.types import Field, Schema, SqlType

#: The values of an added NOT NULL column in existing rows, by type: the types' defaults, as text.
_FILLS: Final = {
    "boolean": "false",
    "varchar": "",
    "date": "1970-01-01",
    "timestamp": "1970-01-01 00:00:00",
    "jsonb": "{}",
}


def alter(session: Session, statement: Alter) -> Result:
    """ALTER of one relation. In a transaction, others see it after COMMIT."""
    command = f"ALTER {kind_word(statement).upper()}"
    session.require_definer(command)
    relation = altered(session, statement)
    if relation is None:
        return Result(command)
    with own_transaction(session):
        if isinstance(statement, RenameRelation):
            _rename(session, statement, relation)
        elif isinstance(statement, RenameColumn):
            _rename_column(session, statement, relation)
        elif isinstance(statement, AddColumn):
            _add_column(session, statement, relation)
        elif isinstance(statement, DropColumn):
            _drop_column(session, statement, relation)
        elif isinstance(statement, SetSchema):
            _set_schema(session, statement, relation)
        elif isinstance(statement, SwapNames):
            _swap(session, statement, relation)
        elif isinstance(statement, AlterWithoutEffect):
            session.notice(f"{command} … {statement.clause} has no effect: {statement.reason}")
    return Result(command)


#: The way to change the fields of records, which keep theirs.
_OTHER_TOPIC: Final = "INSERT INTO other SELECT STREAM … writes a topic with other fields."


def altered(session: Session, statement: Alter) -> Relation | None:
    """The relation that a statement names; None if it does not exist and the statement has IF EXISTS."""
    name = statement.name
    relation = named(session, name, statement)
    if relation is None:
        return None
    # PostgreSQL, "ALTER TABLE": it also renames views, and dbt uses it so.
    renames = statement.kind == "table" and (
        (isinstance(statement, (AlterWithoutEffect, RenameRelation)) and isinstance(relation, View))
        or (isinstance(statement, AlterWithoutEffect) and relation.entry != "enum")
    )
    if not is_called(statement.kind, relation) and not renames:
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {one(kind_word(statement))}',
            hint=f"{used_instead('ALTER', relation, session.semantics)[0]}.",
        )
    adds = isinstance(statement, AddColumn) and relation.can_alter_columns  # this is also for a field of a topic
    if not (relation.can_alter or adds or isinstance(statement, AlterWithoutEffect)):
        hint = _OTHER_TOPIC if relation.topic is not None else None
        raise not_supported(f"ALTER of {one(relation.what)}", statement.text, name.span, hint=hint)
    return relation


def _rename(session: Session, statement: RenameRelation, relation: Relation) -> None:
    new = statement.new
    if session.catalog.by_name(new.name, relation.schema) is relation:
        return
    _check_unused(session, statement, relation)
    if not new.name or "\0" in new.name:
        raise error_at(statement, new.span, "INVALID_NAME", "a name can't be empty or contain a zero byte")
    check_folded(session, statement, new.name, relation.schema, new.span, relation)
    note_names(session, relation)
    now = session.catalog.relations[relation.id]
    if isinstance(now, Table) and now.primary_key:
        now = replace(now, key=now.key_name)  # which stays
    session.put(replace(now, name=new.name, sql=with_name(relation, new.name)))
    if isinstance(relation, Index):
        table = session.catalog.relations[relation.depends_on[0]]
        if isinstance(table, Table) and table.uniques:
            uniques = (replace(u, name=new.name) if u.index == relation.id else u for u in table.uniques)
            session.put(replace(table, uniques=tuple(uniques)))


def _check_unused(session: Session, statement: Alter, relation: Relation) -> None:
    """Raises FEATURE_NOT_SUPPORTED for another name of a type that columns have."""
    if session.catalog.with_enum(relation):
        raise not_supported(
            f"another name of {relation.title}, which columns have,", statement.text, statement.name.span
        )


def _set_schema(session: Session, statement: SetSchema, relation: Relation) -> None:
    schema = schema_meant(statement.schema.name, session.catalog)
    if schema is None:
        raise undefined_schema(session, statement.schema, statement)
    if schema == relation.schema:
        return
    _check_unused(session, statement, relation)
    _check_free(session, statement, relation.name, schema, statement.schema.span)
    note_names(session, relation)
    move(session, relation, relation.name, schema)
    alter_indexes(session, relation, lambda index: replace(index, schema=schema))


def _check_free(session: Session, statement: Alter, name: str, schema: str, span: Span) -> None:
    """Raises DUPLICATE_OBJECT if a relation of a schema has this name, or one that differs only in case."""
    taken = session.catalog.by_name(name, schema)
    if taken is not None:
        raise error_at(statement, span, "DUPLICATE_OBJECT", f"{taken.title} already exists")
    check_folded(session, statement, name, schema, span)


def move(session: Session, relation: Relation, name: str, schema: str) -> None:
    """Gives a relation another name and schema, also in its text."""
    now = session.catalog.relations[relation.id]
    shown = None if schema == relation.schema else schema_shown(schema, session.semantics)
    session.put(replace(now, name=name, schema=schema, sql=with_name(relation, name, shown)))


def _swap(session: Session, statement: SwapNames, relation: Relation) -> None:
    other = altered(session, replace(statement, name=statement.other, if_exists=False))
    assert other is not None
    if other.id in session.catalog.upstream([relation.id]) or relation.id in session.catalog.upstream([other.id]):
        raise error_at(
            statement,
            statement.other.span,
            "DEPENDENT_OBJECTS",
            f"{relation.title} and {other.title} can't exchange their names, because one reads the other",
        )
    for each in (relation, other):
        note_names(session, each)
    between = f"?{relation.id}"  # no statement can write it
    name, schema = relation.name, relation.schema
    session.put(replace(session.catalog.relations[relation.id], name=between))
    move(session, other, name, schema)
    move(session, relation, other.name, other.schema)


def _drop_column(session: Session, statement: DropColumn, relation: Relation) -> None:
    """Raises DEPENDENT_OBJECTS if a key, a watermark, a generated column, or another object reads the column."""
    check_columns_change(statement, relation, "DROP COLUMN", sources=True)
    name, span = statement.column.name, statement.column.span
    names = [c.name for c in relation.columns]
    if name not in names:
        if statement.if_column_exists:
            session.notice(f'column "{name}" of {relation.title} does not exist, skipping')
            return
        raise undefined_column(relation, name, span, statement)
    assert isinstance(relation, Input)
    generated = [g for g, made in relation.generated.items() if g != name and name in [c.name for c in made.reads]]
    event_time = relation.event_time is not None and relation.event_time.column == name
    used = "the primary key" if name in relation.primary_key else "the watermark" if event_time else ""
    used = "the conflict rule" if relation.conflict and name in relation.conflict.versions else used
    used = used or (f'the generated column "{generated[0]}"' if generated else "")
    reference = reference_to_column(session, relation, name)
    used = used or (f'the foreign key "{reference}"' if reference else "")
    used = used or ("every row" if relation.defaults.get(name) == ARRIVAL or len(names) == 1 else "")
    readers = [] if used else readers_of(session, relation, name)
    if used or readers:
        raise error_at(
            statement,
            span,
            "DEPENDENT_OBJECTS",
            f'cannot drop column "{name}" of {relation.title} because '
            + (f"{used} needs it" if used else "other objects depend on it"),
            detail=sentence(f"{r.reader} reads it" for r in readers) if readers else None,
            hint="Drop these first, and create them without it." if readers else None,
        )
    note_names(session, relation)
    place, stored = names.index(name), relation.stored.get(name, name)
    remove_sequences(session, relation, stored)
    kept = {n: n for n in names if n != name}
    sql = without_column(relation, name)
    made = replace(relation.with_names(kept), dropped=(*relation.dropped, stored), sql=sql)
    with located(statement, span):
        check_read_columns(relation, made)
    put_altered(session, relation, made)
    alter_indexes(session, relation, lambda index: index.with_names(kept))
    for other in list(session.catalog.relations.values()):
        known = other.known.get(relation.id)
        if known is not None and place < len(known.columns):
            left = (*known.columns[:place], *known.columns[place + 1 :])
            session.put(replace(other, known={**other.known, relation.id: replace(known, columns=left)}))


def readers_of(session: Session, relation: Relation, name: str) -> list[Relation]:
    """The objects that read a column of a relation: views whose circuits scan it, and plain views, sinks and
    subscriptions whose text may do so.
    """
    database, stored = session.database, relation.stored.get(name, name)
    circuit = database.plans.circuit
    scans = {s.id for s in circuit.scans if s.relation_id == relation.id and stored in s.names}
    found = []
    for other in session.catalog.relations.values():
        if relation.id not in other.depends_on and other.feeds != relation.id:
            continue
        if isinstance(other, Index):
            reads = name in (*other.index_columns, *other.included)
        elif isinstance(other, MaterializedView) and other.id in circuit.sink_of:
            reads = not scans.isdisjoint(circuit.below_sinks[other.id]) or other.feeds == relation.id
        else:
            words = {t.text.lower() for t in tokenize(other.view_text, language_named(other.dialect))}
            reads = not isinstance(other, View) or not words.isdisjoint({name.lower(), "*"})
        if reads:
            found.append(other)
    return found


def _add_column(session: Session, statement: AddColumn, relation: Relation) -> None:
    column, span = statement.column, statement.column_span
    check_columns_change(statement, relation, "ADD COLUMN", sources=True)
    if any(c.name.lower() == column.name.lower() for c in relation.columns):
        if statement.if_not_exists and any(c.name == column.name for c in relation.columns):
            session.notice(f'column "{column.name}" of {relation.title} already exists, skipping')
            return
        raise error_at(
            statement,
            span,
            "DUPLICATE_COLUMN",
            f'column "{column.name}" of {relation.title} already exists',
            detail="Two columns can't have names that differ only in case."
            if not any(c.name == column.name for c in relation.columns)
            else None,
        )
    assert isinstance(relation, Input)
    declared = {} if statement.declared_type is None else {column.name: statement.declared_type}
    if relation.connector:
        check_fed_types(relation, (column,), declared, statement, span)
    stored = [*(relation.stored.get(c.name, c.name) for c in relation.columns), *relation.dropped]
    fill = None if column.nullable or isinstance(relation, Source) else _fill(column.type)
    if statement.declared is not None:
        if relation.connector or isinstance(relation, PushedTable):
            raise not_supported("DEFAULT on a column that a connector gives", statement.text, span)
        default = default_value(statement, statement.declared, column.type)
        fill = _filled(session, statement, default, column)
        statement = replace(statement, default=default)
    if not column.nullable and (statement.default is None or (isinstance(relation, Table) and fill is None)):
        raise not_supported(
            "ADD COLUMN of a column that can't be NULL",
            statement.text,
            span,
            detail="Existing rows have no value for it.",
        )
    made: Input = replace(
        relation,
        columns=(*relation.columns, column),
        defaults=relation.defaults | ({} if statement.default is None else {column.name: statement.default}),
        ranges=relation.ranges | ({} if statement.range is None else {column.name: statement.range}),
        digits=relation.digits | ({} if statement.digits is None else {column.name: statement.digits}),
        declared=relation.declared | declared,
        lengths=relation.lengths | ({} if statement.length is None else {column.name: statement.length}),
        fills=relation.fills | ({} if fill is None else {column.name: fill}),
        # In the stored data, a column that was renamed later may still have this name.
        stored=relation.stored | ({column.name: free_name(column.name, stored)} if column.name in stored else {}),
        sql=with_column(relation, statement.definition),
    )
    if made.connector:
        made = check_connector(made)
    with located(statement, span):
        check_read_columns(relation, made)
    note_names(session, relation)
    put_altered(session, relation, made)
    alter_indexes(session, relation, lambda index: replace(index, columns=made.columns, stored=made.stored))


def _rename_column(session: Session, statement: RenameColumn, relation: Relation) -> None:
    check_columns_change(statement, relation, "RENAME COLUMN", sources=False)
    old, new = statement.column, statement.new
    names = [c.name for c in relation.columns]
    if old.name not in names:
        raise undefined_column(relation, old.name, old.span, statement)
    if any(n.lower() == new.name.lower() for n in names if n != old.name):
        raise error_at(
            statement, new.span, "DUPLICATE_COLUMN", f'column "{new.name}" of {relation.title} already exists'
        )
    if relation.defaults.get(old.name) == ARRIVAL:
        raise not_supported(f'RENAME of the system column "{old.name}"', statement.text, old.span)
    computing = [n for n, g in relation.generated.items() if old.name in (n, *(c.name for c in g.reads))]
    if computing:
        raise error_at(
            statement,
            old.span,
            "FEATURE_NOT_SUPPORTED",
            f'RENAME of a column that generated column "{computing[0]}" depends on is not supported'
            if computing[0] != old.name
            else f'RENAME of the generated column "{old.name}" is not supported',
        )
    writing = [r for r in session.catalog.relations.values() if r.feeds == relation.id]
    if writing:
        raise error_at(
            statement,
            statement.name.span,
            "DEPENDENT_OBJECTS",
            f"cannot rename a column of {relation.title} because other objects write it",
            detail=sentence([f"{writing[0].reader} does"]),
        )
    shown = tuple(new.name if n == old.name else n for n in names)
    made = replace(relation.renamed(shown), sql=with_column_called(relation, old.name, new.name))
    with located(statement, old.span):
        check_read_columns(relation, made)
    if reads_field(relation, old.name):
        session.notice(f'later messages have "{new.name}" instead of "{old.name}"')
    note_names(session, relation)
    put_altered(session, relation, made)
    alter_indexes(session, relation, lambda index: index.renamed(shown))


def check_columns_change(statement: Alter, relation: Relation, what: str, *, sources: bool) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a relation whose query determines its columns."""
    fed = isinstance(relation, Table) and bool(relation.connector) if sources else isinstance(relation, Source)
    if not relation.can_alter_columns or fed:
        kind = f"{relation.what} with a connector" if relation.connector else relation.what
        raise not_supported(f"{what} of {one(kind)}", statement.text, statement.name.span)


def _filled(session: Session, statement: AddColumn, default: str, column: Field) -> str | None:
    """The value that a DEFAULT has now, as the text that existing rows keep; None for NULL.

    Raises FEATURE_NOT_SUPPORTED for a value whose text can't be stored.
    """
    sql = f"SELECT CAST({default} AS {column.type.duckdb})"
    value = rows_read(session, lambda: lending(session, {}), sql, statement.text).column(0)
    if value.null_count:
        return None
    if statement.declared_type is not None:
        value = kept(value.cast(column.type.arrow), column, statement.declared_type)
    if column.type.fields or column.type.element or column.type.name in ("bytea", "interval"):
        detail = "Existing rows would need it."
        what = f"DEFAULT of a column of type {column.type.sql} that is added"
        raise not_supported(what, statement.text, statement.column_span, detail=detail, hint="Add it without DEFAULT.")
    return str(value.cast(pa.string())[0].as_py())


def _fill(kind: SqlType) -> str | None:
    return "0" if kind.is_numeric else _FILLS.get(kind.name)


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name for stored values of a column that is not taken."""
    return next(n for i in range(2, len(taken) + 3) if (n := f"{name}_{i}") not in taken)


def drop(session: Session, statement: Drop) -> Result:
    """DROP of relations of one kind: drops all or none."""
    command = f"DROP {kind_word(statement).upper()}"
    session.require_definer(command)
    found = [r for name in statement.names if (r := _dropped(session, name, statement)) is not None]
    ids = with_dependents(session, found, statement, cascade=statement.cascade)
    if ids:
        dropped = [r for r in session.catalog.relations.values() if r.id in ids or r.owner in ids]
        remove(session, ids)
        function_named("topics.drop_topics")(session, dropped)
        drop_captured(session, dropped)
    return Result(command)


def _dropped(session: Session, name: Name, statement: Drop) -> Relation | None:
    relation = named(session, name, statement)
    if relation is not None and not is_called(statement.kind, relation):
        hint, word = used_instead("DROP", relation, session.semantics)
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{name.shown}" is not {one(kind_word(statement))}',
            hint=f"{hint}." if word is None else f"{hint} to remove {one(word)}.",
        )
    return relation


#: Options that select the messages: they can't be altered, because earlier rows are from the messages selected then.
_FIXED: Final = ("connector", "topic", "kafka.topic", "location", "database.name", "table.name", "snapshot")

#: The option of sources for each value of the setting `recovery_policy` of views.
_RECOVERY: Final = {"strict": "stop", "best_effort": "skip"}

_FIXED_PREFIXES: Final = ("scan.startup.", "start.", "topic.")


def alter_connector(session: Session, statement: AlterConnector) -> Result:
    """ALTER … CONNECTOR WITH: replaces options; views resume at their offsets. If each query reads the source by
    itself, the options change for all queries.

    Raises CONNECTOR_OPTION for an option that can't be altered, or values that the connector rejects.
    """
    command = f"ALTER {kind_word(statement).upper()}"
    relation = _input(session, statement, statement.clause)
    if relation is None:
        return Result(command)
    statement = with_secrets(session, statement)
    for name in statement.options:
        if name in _FIXED or name.startswith(_FIXED_PREFIXES):
            raise error_at(
                statement,
                statement.spans[name],
                "CONNECTOR_OPTION",
                f'option "{name}" can\'t be altered',
                detail="What was read so far is of the topic or table, and from the place, that CREATE named.",
                hint=f"Create another {relation.what}.",
            )
    readers = [r for r in session.catalog.relations.values() if isinstance(r, QuerySource) and r.of == relation.id]
    with located(statement, statement.span, statement.spans):
        session.require_files(statement.options)
        options = kept_options(session, statement.options)
        altered = [check_connector(replace(r, connector={**r.connector, **options})) for r in (relation, *readers)]
    _put(session, *altered)
    return Result(command)


def alter_query(session: Session, statement: AlterQuery) -> Result:
    """ALTER VIEW … MODIFY QUERY SETTING recovery_policy: whether undecodable messages of external streams stop the
    view, which then resumes at its position.

    Timeplus, "ALTER VIEW". Raises FEATURE_NOT_SUPPORTED for other settings, and for views that read no such stream.
    """
    session.require_definer("ALTER VIEW")
    view = named(session, statement.name, statement)
    if view is None:
        return Result("ALTER VIEW")
    for name, value in statement.settings.items():
        span = statement.spans[name]
        if name != "recovery_policy":
            hint = "Drop the view, and create it again with the setting."
            raise not_supported(f"MODIFY QUERY SETTING {name}", statement.text, span, hint=hint)
        if value not in _RECOVERY:
            hint = f"It is {' or '.join(_RECOVERY)}."
            raise error_at(statement, span, "INVALID_PARAMETER", f'setting {name} can\'t be "{value}"', hint=hint)
    on_error = _RECOVERY[statement.settings["recovery_policy"]]
    readers = [r for r in session.catalog.relations.values() if isinstance(r, QuerySource) and r.owner == view.id]
    if not readers:
        raise not_supported(
            f"recovery_policy of {view.title}",
            statement.text,
            statement.name.span,
            detail="It reads no external stream.",
        )
    _put(session, *(check_connector(replace(r, connector={**r.connector, "on_error": on_error})) for r in readers))
    return Result("ALTER VIEW")


def refresh_schema(session: Session, statement: RefreshSchema) -> Result:
    """REFRESH SCHEMA: reads the columns from the schema again and appends new ones. A schema file is also read again
    for decoding. FORMAT … ENCODE first gives the format other options.

    Raises DATATYPE_MISMATCH if a column is missing or has another type: views read it.
    """
    command = f"ALTER {kind_word(statement).upper()}"
    own = isinstance(statement, AlterFormat)
    relation = _input(session, statement, "FORMAT … ENCODE" if own else "REFRESH SCHEMA")
    if relation is None:
        return Result(command)
    before = relation.format
    if isinstance(statement, AlterFormat):
        relation = replace(relation, format=_altered_format(session, statement, relation))
    made = parse(relation.sql, relation.dialect)[-1]
    takes_columns = isinstance(made, CreateRelation) and made.takes_columns
    form, options = relation.format, {} if relation.format is None else dict(relation.format.options)
    with located(statement, statement.name.span):
        session.require_files(options)
    if form is not None and options.pop(KEPT_SCHEMA, None) is not None:
        relation = replace(relation, format=replace(form, options=options))
    elif not takes_columns and not own:
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f"the columns of {relation.title} are declared",
            hint="ALTER … ADD COLUMN adds one.",
        )
    elif relation.is_stored and not own:
        raise not_supported(
            "REFRESH SCHEMA of a table",
            statement.text,
            statement.name.span,
            detail="Rows that are stored already lack the new columns.",
            hint="REFRESH SCHEMA of a source is supported.",
        )
    new: tuple[Field, ...] = ()
    if isinstance(made, CreateRelation) and takes_columns and not relation.is_stored:
        made = replace(made, format=relation.format, options={**made.options, **relation.connector})
        now_made = with_schema_columns(session, made)
        new = _new_columns(statement, relation, now_made.columns)
        relation = replace(relation, columns=(*relation.columns, *new), format=now_made.format)
    if new or relation.format != before:
        with located(statement, statement.name.span):
            _put(session, check_connector(relation))
    session.notice(f"{len(new)} new columns" if len(new) != 1 else "1 new column")
    return Result(command)


def _altered_format(session: Session, statement: AlterFormat, relation: Input) -> MessageFormat:
    """The format with the options of the statement. Raises CONNECTOR_OPTION for another format or encoding."""
    form, now = relation.format, statement.format
    if form is None or (form.rows, form.encoding) != (now.rows, now.encoding):
        raise error_at(
            statement,
            statement.format_span,
            "CONNECTOR_OPTION",
            f"the messages of {relation.title} can't get another FORMAT or ENCODE",
            detail=None if form is None else f"It has FORMAT {form.rows.upper()} ENCODE {form.encoding.upper()}.",
            hint=f"Create another {relation.what}.",
        )
    with located(statement, statement.format_span):
        session.require_files(now.options)
        return replace(form, options=kept_options(session, now.options))


def _new_columns(statement: RefreshSchema, relation: Input, now: Schema) -> tuple[Field, ...]:
    """The columns of the schema that the relation does not have yet. Raises DATATYPE_MISMATCH."""
    found = {c.name: c for c in now}
    for column in relation.columns:
        same = found.get(column.name)
        if same is None or same.type != column.type:
            has = "is gone" if same is None else f"has type {same.type.sql} now"
            raise error_at(
                statement,
                statement.name.span,
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of {relation.title} is {column.type.sql}, and in the schema it {has}',
                hint=f"Create another {relation.what} with the new schema.",
            )
    there = {c.name for c in relation.columns}
    return tuple(replace(c, nullable=True) for n, c in found.items() if n not in there)


def _input(session: Session, statement: Alter, what: str) -> Input | None:
    """The source or table that is named; None if it does not exist and the statement has IF EXISTS, and where only the
    statement is checked: its relation then has no connector.
    """
    session.require_definer(f"ALTER {kind_word(statement).upper()}")
    relation: Relation | None = named(session, statement.name, statement)
    if relation is None:
        return None
    called = is_called(statement.kind, relation) and isinstance(relation, Input)
    if called and session.connectors == "checked":
        return None
    if not called or not isinstance(relation, Input) or not relation.connector:
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f"{relation.title} has no connector",
            detail=sentence([f"{what} is for {one(kind_word(statement))} with a connector"]),
        )
    return relation


def _put(session: Session, *relations: Input) -> None:
    with own_transaction(session):
        for relation in relations:
            session.put(relation)
    session.database.circuit.reinstall()  # opens their sources again
