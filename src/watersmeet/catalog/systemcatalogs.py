"""The relations of rw_catalog, information_schema and pg_catalog that batch queries of any session can read.

RisingWave, "RisingWave catalogs", "Information schema", "System catalogs"; PostgreSQL, "System Catalogs". They have the
columns that scripts read. A server has PostgreSQL's own shapes of the last two (`server.catalog`). Owners are the
number 1, because objects have no owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from watersmeet.catalog.contents import Catalog
from watersmeet.catalog.parts import COMMON_SCHEMA
from watersmeet.catalog.relations import Relation
from watersmeet.catalog.rowless import Connection, NamedSubscription, Sink
from watersmeet.catalog.tables import CapturedDatabase, Index, ReceivedSource, Source, Table
from watersmeet.catalog.views import MaterializedView, View
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, VARCHAR, Field, Schema, SqlType

_OWNER: Final = 1
_DATABASE: Final = "dev"
_FORMS: Final = {"plain": "append-only"}
_NAMES: Final = SqlType("array", element=VARCHAR)

#: The relations with the progress of fills, which the catalog does not have (`database.scans`).
DDL_PROGRESS: Final = "rw_catalog.rw_ddl_progress"
FILL_PROGRESS: Final = "rw_catalog.rw_fragment_backfill_progress"

#: The columns of a system relation, and its rows.
_Made = tuple[Schema, Callable[[Catalog], Iterable[tuple[Any, ...]]]]


def _schema(columns: str) -> Schema:
    """The columns of `name:type name …`; the default type is varchar."""
    kinds = {"int": INTEGER, "bigint": BIGINT, "bool": BOOLEAN, "names": _NAMES}
    parts = [column.partition(":") for column in columns.split()]
    return tuple(Field(name, kinds.get(kind, VARCHAR)) for name, _, kind in parts)


def _number(relation: Relation) -> int:
    return int(relation.id[1:])


def _schema_numbers(catalog: Catalog) -> dict[str, int]:
    return {name: number for number, name in enumerate((COMMON_SCHEMA, *catalog.schemas), 1)}


def _text(catalog: Catalog, relation: Relation) -> str | None:
    """The statement that created a relation, as SHOW CREATE shows it; None if it names invisible ones."""
    return relation.sql if catalog.knows([relation.id]) else None


def _of(*kinds: type[Relation]) -> Callable[[Catalog], list[Relation]]:
    """The visible relations of some kinds that statements can name."""
    return lambda catalog: [r for r in catalog.shown if isinstance(r, kinds) and r.is_named]


_TABLES: Final = _of(Table)
_VIEWS: Final = _of(View)
_MATERIALIZED: Final = _of(MaterializedView)
_INDEXES: Final = _of(Index)
_ALL: Final = _of(Relation)


def _objects(
    relations: Callable[[Catalog], list[Relation]],
    more: str = "",
    values: Callable[[Any], tuple[Any, ...]] | None = None,
) -> _Made:
    """A relation of rw_catalog with a row for each of some relations. more, values: its own columns."""

    def rows(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
        numbers = _schema_numbers(catalog)
        for r in relations(catalog):
            own = () if values is None else values(r)
            yield (_number(r), r.name, numbers[r.schema], _OWNER, _text(catalog, r), *own)

    return _schema(f"id:int name schema_id:int owner:int definition {more}"), rows


def _named(relations: Callable[[Catalog], list[Relation]], columns: str, *, defined: bool = True) -> _Made:
    """A relation of pg_catalog with schema, name and owner of some relations, and their definitions."""

    def rows(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
        for r in relations(catalog):
            yield (r.schema, r.name, "root", *((_text(catalog, r),) if defined else ()))

    return _schema(columns), rows


def _of_columns(catalog: Catalog) -> Iterable[tuple[Relation, int, Field]]:
    for relation in _ALL(catalog):
        if relation.has_rows or isinstance(relation, View):
            yield from ((relation, place, column) for place, column in enumerate(relation.columns, 1))


def _rw_columns(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    for r, place, c in _of_columns(catalog):
        key = c.name in r.primary_key
        yield (_number(r), c.name, place, False, key, False, c.type.sql, not c.nullable)


def _columns(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    for r, place, c in _of_columns(catalog):
        nullable = "YES" if c.nullable else "NO"
        yield (_DATABASE, r.schema, r.name, c.name, place, r.defaults.get(c.name), nullable, c.type.sql)


def _kind(relation: Relation) -> str:
    kinds = ((MaterializedView, "MATERIALIZED VIEW"), (View, "VIEW"), (Table, "BASE TABLE"))
    return next((word for kind, word in kinds if isinstance(relation, kind)), relation.what.upper())


def _information_tables(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    for r in _ALL(catalog):
        if r.has_rows or isinstance(r, View):
            yield (_DATABASE, r.schema, r.name, _kind(r), "YES" if isinstance(r, Table) else "NO")


def _classes(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    numbers = _schema_numbers(catalog)
    letters = ((Index, "i"), (MaterializedView, "m"), (View, "v"), (Table, "r"), (Source, "x"))
    for r in _ALL(catalog):
        letter = next((letter for kind, letter in letters if isinstance(r, kind)), None)
        if letter is not None:
            yield (_number(r), r.name, numbers[r.schema], _OWNER, letter)


def _indexes(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    for r in _INDEXES(catalog):
        yield (r.schema, catalog.relations[r.depends_on[0]].name, r.name, _text(catalog, r))


def _dependencies(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    for r in _ALL(catalog):
        yield from ((_number(r), int(other[1:])) for other in r.depends_on if catalog.shows(catalog.relations[other]))


def _schemas(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    yield from ((number, name, _OWNER) for name, number in _schema_numbers(catalog).items())


def _descriptions(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    for r in _ALL(catalog):
        texts = enumerate([r.comment, *(r.comments.get(c.name, "") for c in r.columns)])
        yield from ((_number(r), "pg_class", place, text) for place, text in texts if text)


def _functions(catalog: Catalog) -> Iterable[tuple[Any, ...]]:
    numbers = _schema_numbers(catalog)
    for number, f in enumerate((f for f in catalog.functions.values() if not f.dropped), 1):
        language = "sql" if f.called is None else f.called.language
        arguments = ", ".join(p.type.sql for p in f.parameters)
        yield (number, f.name, numbers[f.schema], _OWNER, arguments, f.returns.sql, language)


_DESCRIPTION: Final = (_schema("objoid:int classoid objsubid:int description"), _descriptions)

_MADE: Final[dict[str, _Made]] = {
    "rw_catalog.rw_tables": _objects(_TABLES, "append_only:bool", lambda r: (r.append_only,)),
    "rw_catalog.rw_materialized_views": _objects(
        _MATERIALIZED, "append_only:bool schema_name", lambda r: (r.append_only, r.schema)
    ),
    "rw_catalog.rw_views": _objects(_VIEWS),
    "rw_catalog.rw_sources": _objects(
        _of(Source, CapturedDatabase, ReceivedSource),
        "connector append_only:bool",
        lambda r: ((r.options if isinstance(r, ReceivedSource) else r.connector).get("connector"), True),
    ),
    "rw_catalog.rw_sinks": _objects(
        _of(Sink),
        "connector sink_type",
        lambda r: (r.connector.get("connector"), _FORMS.get(r.format.rows, r.format.rows)),
    ),
    "rw_catalog.rw_indexes": _objects(
        _INDEXES,
        "primary_table_id:int key_columns:names include_columns:names",
        lambda r: (int(r.depends_on[0][1:]), list(r.index_columns), list(r.included)),
    ),
    "rw_catalog.rw_connections": _objects(_of(Connection), "type_", lambda r: (r.type,)),
    "rw_catalog.rw_subscriptions": _objects(
        _of(NamedSubscription),
        "retention_seconds:bigint schema_name",
        lambda r: (r.retention_us // 1_000_000, r.schema),
    ),
    "rw_catalog.rw_relations": _objects(_ALL, "relation_type", lambda r: (r.what,)),
    "rw_catalog.rw_schemas": (_schema("id:int name owner:int"), _schemas),
    "rw_catalog.rw_databases": (_schema("id:int name owner:int"), lambda _: [(1, _DATABASE, _OWNER)]),
    "rw_catalog.rw_columns": (
        _schema(
            "relation_id:int name position:int is_hidden:bool is_primary_key:bool is_distribution_key:bool data_type "
            "is_not_null:bool"
        ),
        _rw_columns,
    ),
    "rw_catalog.rw_description": _DESCRIPTION,
    "rw_catalog.rw_functions": (
        _schema("id:int name schema_id:int owner:int arg_types return_type language"),
        _functions,
    ),
    "rw_catalog.rw_depend": (_schema("objid:int refobjid:int"), _dependencies),
    DDL_PROGRESS: (_schema("ddl_id:bigint ddl_statement create_type progress initialized_at"), lambda _: []),
    FILL_PROGRESS: (_schema("job_id:int fragment_id:int job_name upstream_table_name progress"), lambda _: []),
    "information_schema.tables": (
        _schema("table_catalog table_schema table_name table_type is_insertable_into"),
        _information_tables,
    ),
    "information_schema.columns": (
        _schema(
            "table_catalog table_schema table_name column_name ordinal_position:int column_default is_nullable "
            "data_type"
        ),
        _columns,
    ),
    "information_schema.views": (
        _schema("table_catalog table_schema table_name view_definition"),
        lambda catalog: [(_DATABASE, r.schema, r.name, _text(catalog, r)) for r in _VIEWS(catalog)],
    ),
    "information_schema.schemata": (
        _schema("catalog_name schema_name schema_owner"),
        lambda catalog: [(_DATABASE, name, "root") for name in _schema_numbers(catalog)],
    ),
    "pg_catalog.pg_tables": _named(_TABLES, "schemaname tablename tableowner", defined=False),
    "pg_catalog.pg_views": _named(_VIEWS, "schemaname viewname viewowner definition"),
    "pg_catalog.pg_matviews": _named(_MATERIALIZED, "schemaname matviewname matviewowner definition"),
    "pg_catalog.pg_indexes": (_schema("schemaname tablename indexname indexdef"), _indexes),
    "pg_catalog.pg_description": _DESCRIPTION,
    "pg_catalog.pg_class": (_schema("oid:int relname relnamespace:int relowner:int relkind"), _classes),
    "pg_catalog.pg_namespace": (_schema("oid:int nspname nspowner:int"), _schemas),
}

#: The columns of each relation, by its name with its schema.
SYSTEM_CATALOGS: Final[dict[str, Schema]] = {name: schema for name, (schema, _) in _MADE.items()}

#: The schemas whose relations are found without them.
_PREFIXES: Final = {"rw_": "rw_catalog", "pg_": "pg_catalog"}


def qualified(name: str) -> str:
    """The name of a system relation with its schema, where that was left out."""
    schema = _PREFIXES.get(name[:3])
    return name if schema is None or "." in name else f"{schema}.{name}"


def catalog_rows(name: str, catalog: Catalog) -> Sequence[tuple[Any, ...]]:
    """The rows of one of `SYSTEM_CATALOGS` that the session may see."""
    return list(_MADE[name][1](catalog))
