"""Creates, names, replaces and drops relations in the catalog, and sets the schemas in which names are looked up.

CREATE OR REPLACE removes the old relation in the commit that creates the new one. A plain view keeps its identity, so
its readers remain. As in PostgreSQL ("CREATE VIEW"), columns may only be added after the existing ones. All other
relations are dropped and created again: a table's content is lost (SQLstream, "CREATE STREAM": the history is lost),
and a materialized view is filled again. Renaming a relation changes its stored text. Relations that refer to it store
its earlier names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import (
    COMMON_SCHEMA,
    FAMILIES,
    AddressRanges,
    Check,
    Constraint,
    DropWord,
    ForeignKey,
    Index,
    Known,
    MaterializedView,
    Relation,
    SinkQuery,
    Table,
    TopicWriter,
    Unique,
    View,
    one,
)
from watersmeet.catalog.roles import PassGrants
from watersmeet.database.constraints import referenced_columns, references_to
from watersmeet.database.filling import RECOMPUTE, clear_away, most_join_rows, recomputing
from watersmeet.database.secrets import kept
from watersmeet.database.sessions.context import Session, depended_on, error_at, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.sequences import released
from watersmeet.dialects.registry import COMMON_NAMES, language_named
from watersmeet.dialects.schemas import schema_meant, schema_shown
from watersmeet.dialects.script import read_script, tokenize
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree.definitions import (
    Alter,
    ConstraintClause,
    Create,
    CreateSchema,
    CreateTable,
    CreateView,
    Drop,
    DropSchema,
)
from watersmeet.dialects.tree.statements import Name, SetVariable, Statement
from watersmeet.dialects.tree.tokens import quoted
from watersmeet.errors import Span, did_you_mean
from watersmeet.values.types import Field, Schema

#: The entry of `search_path` for a schema with the user's name, which Watersmeet never has.
USER_SCHEMA: Final = "$user"


def make_schema(session: Session, statement: CreateSchema) -> Result:
    """Runs CREATE SCHEMA."""
    session.require_definer("CREATE")
    word, name = session.semantics.schema_word, statement.name.name
    command = f"CREATE {word.upper()}"
    if "\0" in name or name == USER_SCHEMA:
        raise error_at(statement, statement.name.span, "INVALID_NAME", f"a {word} can't have this name")
    with session.database.guard:
        known = (*COMMON_NAMES, *session.catalog.schemas)
        same = next((s for s in known if s.lower() == name.lower()), None)
        if same == name and statement.if_not_exists:
            session.notice(f'{word} "{name}" already exists, skipping')
            return Result(command)
        if same is not None:
            detail = (
                f'"{same}" is how a dialect calls the schema that is always there.' if same in COMMON_NAMES else None
            )
            raise error_at(
                statement, statement.name.span, "DUPLICATE_OBJECT", f'{word} "{same}" already exists', detail=detail
            )
        session.put_schemas((*session.catalog.schemas, name))
    return Result(command)


def schemas_of(session: Session, statement: DropSchema) -> list[str]:
    """The schemas in a DROP SCHEMA. Raises UNDEFINED_OBJECT, and DEPENDENT_OBJECTS for the default schema, which always
    exists.
    """
    found = []
    for name in statement.names:
        schema = schema_meant(name.name, session.catalog)
        if schema == COMMON_SCHEMA:
            raise error_at(
                statement,
                name.span,
                "DEPENDENT_OBJECTS",
                f'{session.semantics.schema_word} "{name.name}" can\'t be dropped',
                detail="It is always there.",
            )
        if schema is not None:
            found.append(schema)
        elif statement.if_exists:
            session.notice(f'{session.semantics.schema_word} "{name.name}" does not exist, skipping')
        else:
            raise undefined_schema(session, name, statement)
    return found


def set_schema(session: Session, statement: SetVariable, name: Name) -> Result:
    """Runs SET SCHEMA and USE: unqualified names are then looked up only in this schema."""
    schema = schema_meant(name.name, session.catalog)
    if schema is None:
        raise undefined_schema(session, name, statement)
    session.variables.set(statement.name, quoted(schema))
    return Result("SET")


def schema_for(session: Session, statement: Create) -> str:
    """The schema in which the statement creates its relation: the qualifier, or the first schema of the path."""
    if session.temporaries.take(statement):
        return session.temporaries.open()
    if statement.schema is None:
        path = session.lasting_path
        if not path:
            raise error_at(
                statement,
                statement.name_span,
                "UNDEFINED_OBJECT",
                "no schema has been selected to create in",
                hint="Write schema.name, or SET search_path to a schema that exists.",
            )
        return path[0]
    schema = schema_meant(statement.schema, session.catalog)
    if schema is None:
        raise undefined_schema(session, Name(statement.schema, statement.name_span), statement)
    return schema


def undefined_schema(session: Session, name: Name, statement: Statement) -> Exception:
    """The error UNDEFINED_OBJECT for a schema, with similar names."""
    word = session.semantics.schema_word
    known = [schema_shown(s, session.semantics) for s in (COMMON_SCHEMA, *session.catalog.schemas)]
    return error_at(
        statement,
        name.span,
        "UNDEFINED_OBJECT",
        f'{word} "{name.name}" does not exist',
        hint=did_you_mean(name.name, known) or f"CREATE {word.upper()} {quoted(name.name)} makes it.",
    )


def is_listed(what: str, relation: Relation, semantics: Semantics) -> bool:
    """Whether `SHOW what` lists a relation."""
    if what != "tables":
        return what == "relations" or what in relation.words.show
    if semantics.tables == "read":
        return relation.has_rows
    return what in relation.words.show and (semantics.tables != "plain" or "streams" not in relation.words.show)


def has_create(word: str, relation: Relation, semantics: Semantics) -> bool:
    """Whether `SHOW CREATE word` shows a relation."""
    words = relation.words.show_create
    return word in words or (word == "table" and semantics.tables == "read" and "topic" in words)


def relation_of_kind(session: Session, statement: Statement, name: Name, kind: str, command: str) -> Relation:
    """The relation that a statement names after the word for its kind; kind is "" without such a word.

    Raises UNDEFINED_RELATION, and CATALOG_TYPE_MISMATCH with the hint `command` and the right word.
    """
    relation = session.find(name)
    if relation is None:
        shown = [r for r in session.catalog.shown if r.is_named]
        names = [r.shown for r in shown if has_create(kind, r, session.semantics)] if kind else None
        raise undefined_relation(session.catalog, name, statement, kind or "relation", names)
    if kind and not has_create(kind, relation, session.semantics):
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{relation.shown}" is {one(relation.what)}, not {one(kind)}',
            hint=f"Use {command} {relation.words.show_create[0].upper()}.",
        )
    return relation


def is_called(word: DropWord, relation: Relation) -> bool:
    """Whether DROP and ALTER use this word for the relation."""
    return word in relation.words.drop


def used_instead(verb: str, relation: Relation, semantics: Semantics) -> tuple[str, str | None]:
    """The word that the session's dialect writes after `verb` for this relation, or None, and a hint with it."""
    words = relation.words.drop
    found = [w for known in (semantics.own_words, FAMILIES) for w in words if w in known]
    if not found:
        return f"SET dialect = '{relation.dialect}': that has {verb} {words[0].upper()}", None
    return f"Use {verb} {found[0].upper()}", found[0]


def check_replaceable(statement: df.Create, existing: Relation) -> None:
    """Raises CATALOG_TYPE_MISMATCH if the statement creates another kind of relation than the existing one."""
    made = statement.makes.words.role
    if existing.role == made:
        return
    raise error_at(
        statement,
        statement.name_span,
        "CATALOG_TYPE_MISMATCH",
        f"{existing.reader} can't be replaced by {one(made)}",
        hint=f"Drop the {existing.role} first; do both in one transaction so that nobody misses it.",
    )


def is_redefined(session: Session, statement: Statement) -> bool:
    """Whether CREATE OR REPLACE gives a view another query under objects that are filled through it.

    Inside of transactions it never does. In a fork it does for each materialized view, because PROMOTE gives readers of
    the main database the difference.
    """
    if not isinstance(statement, CreateView) or not statement.replaces or session.transaction is not None:
        return False
    existing = session.catalog.by_name(statement.name, schema_for(session, statement))
    kind = MaterializedView if type(statement) is df.CreateMaterializedView else View
    if type(existing) is not kind or type(statement) not in (CreateView, df.CreateMaterializedView):
        return False
    if kind is MaterializedView and session.database.layout.is_fork and not existing.feeds:
        return True
    return any(r.is_fed_by_circuit or kind is MaterializedView for r in session.catalog.dependents(existing.id))


@contextlib.contextmanager
def keeping_grants(session: Session, statement: df.Create) -> Iterator[None]:
    """Passes grants on the relation that a statement replaces inside the block to the new relation."""
    schema = schema_for(session, statement)
    old = session.catalog.by_name(statement.name, schema)
    yield
    new = session.catalog.by_name(statement.name, schema)
    granted = old is not None and any(old.id in role.grants for role in session.catalog.roles.values())
    if granted and new is not None and old is not None and new.id != old.id:
        session.put_roles([PassGrants(old.id, new.id)])


def is_same(old: Relation, new: Relation) -> bool:
    """Whether two views have the same text, dialect and resolved names."""
    return not old.known and (
        (old.sql, old.dialect, old.path, old.zone, old.columns, set(old.depends_on), set(old.functions))
        == (new.sql, new.dialect, new.path, new.zone, new.columns, set(new.depends_on), set(new.functions))
    )


R = TypeVar("R", bound=Relation)


def new_relation(session: Session, statement: Create, kind: type[R], columns: Schema, **fields: Any) -> R:
    """The catalog entry for a new relation. fields: all fields except id, name, schema, path, text and dialect.

    Plaintext secrets of the statement are replaced by references.
    """
    if issubclass(kind, MaterializedView):
        own = {"most_join_rows": most_join_rows(session.variables), "zone": session.catalog.zone}
        fields = {**own, "recompute": recomputing(session.variables.get(RECOMPUTE)), **fields}
    relation = kind(
        session.catalog.new_id(kind),
        fields.pop("name", statement.name),
        columns,
        sql=statement.sql,
        dialect=session.dialect,
        schema=schema_for(session, statement),
        path=session.catalog.path if statement.temporary else session.lasting_path,
        known={} if session.view is None else session.view.known,
        **fields,
    )
    session.check_lasting(relation)
    return kept(session, relation)


def may_create(session: Session, statement: Create, name: str, span: Span, if_not_exists: bool) -> bool:
    """Whether to create the relation: False if it exists and the statement has IF NOT EXISTS.

    Raises DUPLICATE_OBJECT or DUPLICATE_TYPE, INVALID_NAME, UNDEFINED_OBJECT.
    """
    session.require_creator(statement, span)
    if not name:
        raise error_at(statement, span, "INVALID_NAME", "a name can't be empty")
    schema = schema_for(session, statement)
    existing = session.catalog.by_name(name, schema)
    if existing is not None:
        if statement.replaces:
            _give_way(session, statement, existing)
            return True
        if if_not_exists:
            session.notice(f'relation "{existing.shown}" already exists, skipping')
            return False
        raise error_at(statement, span, existing.duplicate, f"{existing.title} already exists")
    check_folded(session, statement, name, schema, span)
    return True


def check_folded(
    session: Session, statement: Statement, name: str, schema: str, span: Span, own: Relation | None = None
) -> None:
    """Raises DUPLICATE_OBJECT or DUPLICATE_TYPE for a name that DuckDB can't distinguish from that of a relation other
    than `own`.
    """
    shown = Table("", name, (), schema=schema).shown.lower()
    same = (r for r in session.catalog.relations.values() if r.shown.lower() == shown and r.is_named and r is not own)
    folded = next(same, None)
    if folded is not None:
        detail = "upper and lower case" if folded.schema == schema else "where a dot belongs to the name"
        raise error_at(
            statement,
            span,
            folded.duplicate,
            f"{folded.title} already exists",
            detail=f"Two relations can't have names that differ only in {detail}.",
        )


def _give_way(session: Session, statement: Create, existing: Relation) -> None:
    """Removes the relation that the statement replaces. A plain view stays, because others may read it
    (`create_view`).
    """
    check_replaceable(statement, existing)
    if type(statement) is not CreateView:
        remove(session, with_dependents(session, [existing], statement, cascade=False, verb="replace"))


def check_columns(columns: Sequence[Field], statement: Statement) -> None:
    """Raises DUPLICATE_COLUMN for names that DuckDB can't distinguish."""
    seen: dict[str, str] = {}
    for column in columns:
        folded = column.name.lower()
        if folded in seen:
            same = seen[folded] == column.name
            raise error_at(
                statement,
                statement.span,
                "DUPLICATE_COLUMN",
                f'column "{column.name}" specified more than once',
                detail=None if same else "Two columns can't have names that differ only in case.",
            )
        seen[folded] = column.name


def named_columns(columns: Schema, statement: CreateView) -> Schema:
    """The columns of a view: the columns of its query with the names in the statement."""
    names = statement.column_names
    if not names:
        return columns
    if len(names) > len(columns):
        raise error_at(
            statement, statement.name_span, "SYNTAX_ERROR", "CREATE VIEW specifies more column names than columns"
        )
    renamed = [Field(n, c.type, c.nullable) for n, c in zip(names, columns, strict=False)]
    return (*renamed, *columns[len(names) :])


def add(session: Session, relation: Relation) -> None:
    """Adds a relation."""
    session.put(relation)


def remove(session: Session, ids: set[str]) -> None:
    """Removes relations, with their hidden helper views, from the catalog and the circuit. In a transaction, relations
    visible to others stay until COMMIT.
    """
    database = session.database
    with database.guard:
        ids = ids | {r.id for r in session.catalog.relations.values() if r.owner in ids}
        for table in list(session.catalog.relations.values()):
            if isinstance(table, Table) and table.id not in ids and any(u.index in ids for u in table.uniques):
                session.put(replace(table, uniques=tuple(u for u in table.uniques if u.index not in ids)))
        if session.transaction is not None:
            for relation_id in ids:
                database.content.drop(relation_id)
            ids = session.transaction.drop(ids, database.catalog)
        if ids:
            database.change_catalog(database.catalog.without(ids))
    clear_away(session, ids)


def with_dependents(
    session: Session, found: Sequence[Relation], statement: Statement, *, cascade: bool, verb: str = "drop"
) -> set[str]:
    """The ids of relations and of all relations that read them. Raises DEPENDENT_OBJECTS if others read them and
    `cascade` is not set.
    """
    ids = {r.id for r in found}
    for relation in found:
        writing = [r for r in session.catalog.relations.values() if r.feeds == relation.id and not r.owner]
        above = [
            *session.catalog.dependents(relation.id),
            *writing,
            *(d for r in writing for d in session.catalog.dependents(r.id)),
        ]
        # hidden relations are dropped with their owner, which reads the same relations
        above = list({r.id: r for r in above if r.id not in ids and not isinstance(r, SinkQuery)}.values())
        # an index is dropped with its table, and processors with their topic
        ids |= {r.id for r in above if _serves(r, relation, verb)}
        above = [r for r in above if r.id not in ids]
        if above and not cascade:
            raise depended_on(
                statement,
                statement.span,
                f"{verb} {relation.title}",
                (f"{r.reader} depends on it" for r in above),
                hint="Use DROP … CASCADE to drop the dependent objects too.",
            )
        for other in above:
            session.notice(f"drop cascades to {other.title}")
        ids |= {r.id for r in above}
    ids |= released(session, found, ids, statement, cascade=cascade, verb=verb)
    _drop_references(session, ids, statement, cascade=cascade, verb=verb)
    return ids


def _drop_references(session: Session, ids: set[str], statement: Statement, *, cascade: bool, verb: str) -> None:
    """Drops the foreign keys of other tables that reference dropped ones. Raises DEPENDENT_OBJECTS unless `cascade` is
    set.
    """
    known = session.catalog.relations
    found = [(r, k) for i in ids for r, k in references_to(session.catalog, i) if r.id not in ids]
    for index in (r for i in ids if isinstance(r := known.get(i), Index) and r.depends_on[0] not in ids):
        key = next((u.columns for u in known[index.depends_on[0]].uniques if u.index == index.id), None)
        found += [
            (r, k)
            for r, k in references_to(session.catalog, index.depends_on[0])
            if key is not None and {*referenced_columns(known[index.depends_on[0]], k)} == {*key}
        ]
    if found and not cascade:
        parent = known[found[0][1].table]
        raise depended_on(
            statement,
            statement.span,
            f"{verb} {parent.title}",
            (f'constraint "{k.name}" of {r.title} depends on it' for r, k in found),
            hint="Use DROP … CASCADE to drop the dependent objects too.",
        )
    for child, reference in found:
        drop_reference(session, child.id, reference)


def reference_to_column(session: Session, relation: Relation, name: str) -> str | None:
    """The name of a foreign key that references a column; None if there is none."""
    found = references_to(session.catalog, relation.id)
    return next((k.name for _, k in found if name in referenced_columns(relation, k)), None)


def drop_reference(session: Session, relation_id: str, key: ForeignKey) -> None:
    """Drops a foreign key with the key that it references, with a notice."""
    child = session.catalog.relations[relation_id]
    assert isinstance(child, Table)
    session.notice(f'drop cascades to constraint "{key.name}" of {child.title}')
    own = next(k for k in child.foreign_keys if k.name == key.name)
    left = tuple(k for k in child.foreign_keys if k is not own)
    session.put(replace(child, sql=without_constraint(child, own), foreign_keys=left))


def _serves(relation: Relation, other: Relation, verb: str) -> bool:
    """Whether dropping or replacing `other` drops the relation as well.

    Dropping a topic, but not replacing it, drops the processors that write it.
    """
    writes = isinstance(relation, TopicWriter) and relation.feeds == other.id
    return isinstance(relation, (Index, AddressRanges)) or (writes and verb == "drop")


def named(session: Session, name: Name, statement: Drop | Alter) -> Relation | None:
    """The relation with a name, of any kind; None if it does not exist and the statement has IF EXISTS.

    Raises UNDEFINED_RELATION with similar names of the statement's kind.
    """
    relation = session.find(name)
    if relation is None and not statement.if_exists:
        same_kind = [r.shown for r in session.catalog.relations.values() if is_called(statement.kind, r) and r.is_named]
        raise undefined_relation(session.catalog, name, statement, kind_word(statement), same_kind)
    if relation is None:
        session.notice(f'{kind_word(statement)} "{name.shown}" does not exist, skipping')
    return relation


def kind_word(statement: Drop | Alter) -> str:
    """The kind of relation that the statement names, for messages."""
    return "view" if statement.kind == "any view" else statement.kind


#: Items of a column list other than columns.
_NO_COLUMNS: Final = (
    "PRIMARY", "PRIMARY KEY", "WATERMARK", "INDEX", "CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN", "FOREIGN KEY",
)  # fmt: skip


def note_names(session: Session, relation: Relation) -> None:
    """Stores a relation's current names in each relation whose SQL text refers to it."""
    known = Known(relation.name, relation.schema, tuple(c.name for c in relation.columns))
    for other in list(session.catalog.relations.values()):
        names_it = relation.id in other.depends_on or relation.id == other.feeds
        if names_it and not isinstance(other, Index) and relation.id not in other.known:
            session.put(replace(other, known={**other.known, relation.id: known}))


def alter_indexes(session: Session, relation: Relation, altered: Callable[[Relation], Relation]) -> None:
    """Stores the indexes of a relation after changing them by `altered`."""
    for index in list(session.catalog.relations.values()):
        if isinstance(index, Index) and relation.id in index.depends_on:
            session.put(altered(index))


def with_name(relation: Relation, name: str, schema: str | None = None) -> str:
    """The CREATE statement with another name. schema: another schema; None for that of the statement."""
    made = _created(relation)
    if made is None:
        return relation.sql
    shown, schema = written(name, relation), schema or made.schema
    if schema is not None:
        shown = f"{written(schema, relation)}.{shown}"
    return f"{relation.sql[: made.name_span.start]}{shown}{relation.sql[made.name_span.end :]}"


def with_column(relation: Relation, definition: str) -> str:
    """The CREATE statement with another column or constraint. For CREATE TABLE … AS the columns replace the query."""
    made = _created(relation)
    if made is None:
        return relation.sql
    if isinstance(made, CreateTable) and made.query is not None:
        columns = [f"{written(c.name, relation)} {c.type.sql}" for c in relation.columns]
        return f"{relation.sql[: made.name_span.end]} ({', '.join([*columns, definition])})"
    _, closing, _ = _list(relation, made)
    return f"{relation.sql[: closing.start].rstrip()}, {definition}{relation.sql[closing.start :]}"


def without_constraint(relation: Table, constraint: Constraint | None, name: str = "") -> str:
    """The CREATE statement without a constraint, or with another name of it. None is the primary key."""
    made = _created(relation)
    clauses = made.constraints if isinstance(made, CreateTable) else ()
    clause = next((c for c in clauses if _writes(relation, c, constraint)), None)
    if made is None or clause is None:
        return relation.sql
    start, end = clause.span.start, clause.span.end
    if name:
        body = relation.sql[start:end]
        if clause.name:
            words = tokenize(body, language_named(relation.dialect))
            body = body[words[2].start :]
        return f"{relation.sql[:start]}CONSTRAINT {written(name, relation)} {body}{relation.sql[end:]}"
    if clause.is_column:
        return f"{relation.sql[:start].rstrip()}{relation.sql[end:]}"
    items, closing, _ = _list(relation, made)
    kept = ", ".join(relation.sql[i[0].start : i[-1].end + 1] for i in items if i[0].start != start)
    return f"{relation.sql[: items[0][0].start]}{kept}{relation.sql[closing.start :]}"


def _writes(relation: Table, clause: ConstraintClause, constraint: Constraint | None) -> bool:
    """Whether a clause of the CREATE statement is that of a constraint."""
    if clause.name:
        return clause.name == (relation.key_name if constraint is None else constraint.name)
    if constraint is None:
        return clause.kind == "primary key"
    if isinstance(constraint, Check):
        return clause.text == constraint.text
    kind = "unique" if isinstance(constraint, Unique) else "foreign key"
    return clause.kind == kind and tuple(c.name for c in clause.columns) == constraint.columns


def without_column(relation: Relation, name: str) -> str:
    """The CREATE statement without a column. For CREATE TABLE … AS the columns replace the query."""
    made = _created(relation)
    if made is None:
        return relation.sql
    if isinstance(made, CreateTable) and made.query is not None:
        columns = [f"{written(c.name, relation)} {c.type.sql}" for c in relation.columns if c.name != name]
        return f"{relation.sql[: made.name_span.end]} ({', '.join(columns)})"
    items, closing, _ = _list(relation, made)
    fold = {"lower": str.lower, "upper": str.upper}.get(str(language_named(relation.dialect).semantics.folding), str)
    kept = [
        i
        for i in items
        if i[0].text.upper() in _NO_COLUMNS
        or (i[0].text if i[0].token_type == TokenType.IDENTIFIER else fold(i[0].text)) != name
    ]
    text = ", ".join(relation.sql[i[0].start : i[-1].end + 1] for i in kept)
    return f"{relation.sql[: items[0][0].start]}{text}{relation.sql[closing.start :]}"


def with_column_called(relation: Relation, old: str, new: str) -> str:
    """The CREATE statement with a column renamed: in its declaration, in keys, indexes and watermarks."""
    made = _created(relation)
    if made is None or (isinstance(made, CreateTable) and made.query is not None):
        return relation.sql
    language = language_named(relation.dialect)
    items, _, behind = _list(relation, made)
    places = [t for item in items for t in (item if item[0].text.upper() in _NO_COLUMNS else item[:1])]
    options = next((i for i, t in enumerate(behind) if t.text.upper() in ("WITH", "SETTINGS", "FORMAT")), len(behind))
    fold = {"lower": str.lower, "upper": str.upper}.get(str(language.semantics.folding), str)
    text = relation.sql
    for token in reversed([*places, *behind[:options]]):
        is_quoted = token.token_type == TokenType.IDENTIFIER
        if token.token_type != TokenType.STRING and (token.text if is_quoted else fold(token.text)) == old:
            text = f"{text[: token.start]}{written(new, relation)}{text[token.end + 1 :]}"
    return text


#: The first words of the clauses of a column.
_CLAUSES: Final = (
    "NOT", "NULL", "DEFAULT", "PRIMARY", "PRIMARY KEY", "AS", "GENERATED", "UNIQUE", "CHECK", "CONSTRAINT", "COLLATE",
    "REFERENCES",
)  # fmt: skip


def with_column_altered(relation: Relation, name: str, kind: str, dropped: Sequence[str], added: str) -> str:
    """The CREATE statement with another definition of a column. kind: the new type, or "". dropped: the first words of
    the clauses that it loses. added: a clause that it gets, or "".
    """
    made = _created(relation)
    if made is None:
        return relation.sql
    if isinstance(made, CreateTable) and made.query is not None:
        columns = [f"{written(c.name, relation)} {c.type.sql}" for c in relation.columns]
        sql = f"{relation.sql[: made.name_span.end]} ({', '.join(columns)})"
        return with_column_altered(replace(relation, sql=sql), name, kind, dropped, added)
    items, _, _ = _list(relation, made)
    fold = {"lower": str.lower, "upper": str.upper}.get(str(language_named(relation.dialect).semantics.folding), str)
    item = next(
        i
        for i in items
        if i[0].text.upper() not in _NO_COLUMNS
        and (i[0].text if i[0].token_type == TokenType.IDENTIFIER else fold(i[0].text)) == name
    )
    clauses: list[list[Token]] = [[]]
    depth = 0
    for token in item[1:]:
        last = clauses[-1][-1].text.upper() if clauses[-1] else ""
        starts = depth == 0 and token.text.upper() in _CLAUSES and token.token_type != TokenType.STRING
        if starts and last not in ("NOT", "DEFAULT", "CONSTRAINT"):  # NOT NULL, DEFAULT NULL
            clauses.append([])
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        clauses[-1].append(token)
    texts = [relation.sql[c[0].start : c[-1].end + 1] for c in clauses if c]
    kept = [t for c, t in zip(clauses[1:], texts[1:], strict=True) if c[0].text.upper() not in dropped]
    definition = " ".join([*([kind or texts[0]]), *kept, *([added] if added else [])])
    return f"{relation.sql[: item[1].start]}{definition}{relation.sql[item[-1].end + 1 :]}"


def _list(relation: Relation, made: Create) -> tuple[list[list[Token]], Token, list[Token]]:
    """The items of the column list, the closing parenthesis, and the tokens after it."""
    tokens = [t for t in tokenize(relation.sql, language_named(relation.dialect)) if t.start >= made.name_span.end]
    depth, items = 0, [[]]  # type: ignore[var-annotated]
    for i, token in enumerate(tokens):
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0 and i:
            return [item for item in items if item], token, tokens[i + 1 :]
        if depth == 1 and token.token_type == TokenType.COMMA:
            items.append([])
        elif depth:
            items[-1].append(token)
        depth += token.token_type == TokenType.L_PAREN
    raise AssertionError(relation.sql)


def _created(relation: Relation) -> Create | None:
    """The statement that created a relation; None for an index that CREATE STREAM created."""
    made = read_script(relation.sql, language_named(relation.dialect))[-1]
    return made if isinstance(made, Create) and made.name == relation.name else None


def written(name: str, relation: Relation) -> str:
    """A name, quoted as the relation's dialect requires."""
    plain = re.fullmatch("[a-z_][a-z0-9_]*", name) and language_named(relation.dialect).semantics.folding != "upper"
    return name if plain else '"' + name.replace('"', '""') + '"'
