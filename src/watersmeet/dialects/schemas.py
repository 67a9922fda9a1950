"""Resolves names of schemas and relations in each dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sqlglot import exp

from watersmeet.catalog import COMMON_SCHEMA, SYSTEM_CATALOGS, TEMPORARY, Catalog, Relation, SqlFunction, is_temporary
from watersmeet.dialects.registry import COMMON_NAMES
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.nodes import ImpliedAlias, KnownTable
from watersmeet.dialects.tree.queries import is_folded, name_of
from watersmeet.dialects.tree.tokens import unquoted
from watersmeet.errors import did_you_mean
from watersmeet.values.spans import own_span, set_span

#: The name of the only database of a directory, which is RisingWave's default.
DATABASE: Final = "dev"

_LISTED: Final = re.compile(r'\s*("(?:[^"]|"")*"|[^,]*?)\s*(?:,|\Z)')


def comparable_schema(name: str) -> str:
    """The form of a schema name for comparison: case-insensitive, and the same for all names of the default schema."""
    return COMMON_SCHEMA if name.lower() in COMMON_NAMES else name.lower()


def schema_meant(name: str, catalog: Catalog) -> str | None:
    """The schema with a name, or None."""
    wanted = comparable_schema(name)
    if wanted == TEMPORARY or is_temporary(wanted):
        return next((s for s in catalog.path if is_temporary(s) and wanted in (TEMPORARY, s)), None)
    return next((s for s in (COMMON_SCHEMA, *catalog.schemas) if comparable_schema(s) == wanted), None)


def schema_shown(schema: str, semantics: Semantics) -> str:
    """The dialect's name of a schema."""
    return semantics.schema if schema == COMMON_SCHEMA else schema


def find_relation(catalog: Catalog, name: str, schema: str | None, *, folded: bool) -> Relation | None:
    """The relation with a name, optionally qualified by a schema. `folded` is explained at `Catalog.by_name`.

    A topic may have dots in its name: without such a schema, `market.risk` is the name of a relation.
    """
    if schema is None:
        return catalog.by_name(name, folded=folded)
    found = schema_meant(schema, catalog)
    return catalog.by_name(f"{schema}.{name}" if found is None else name, found, folded=folded)


def relation_in_from(node: exp.Table, catalog: Catalog) -> Relation | None:
    """The relation of an item of FROM."""
    if isinstance(node, KnownTable):
        return catalog.relations[node.args["relation_id"]]
    schema = node.args.get("db")
    return find_relation(
        catalog, name_of(node.this), None if schema is None else name_of(schema), folded=is_folded(node.this)
    )


def relation_written(catalog: Catalog, text: str) -> Relation | None:
    """The relation for a text: a name that the search path resolves, or `schema.name`."""
    schema, dot, name = text.partition(".")
    return find_relation(catalog, text, None, folded=True) or (
        find_relation(catalog, name, schema, folded=True) if dot else None
    )


def find_function(catalog: Catalog, name: str, schema: str | None) -> SqlFunction | None:
    """The SQL function with a name, optionally qualified by a schema."""
    if schema is None:
        return catalog.function(name)
    found = schema_meant(schema, catalog)
    return None if found is None else catalog.function(name, found)


def near_relations(catalog: Catalog, name: str, schema: str | None, others: Iterable[str] = ()) -> str | None:
    """The hint for an unknown relation: that it is being filled, a relation with the same name in another schema, or
    similar names.
    """
    if any(r.name == name and r.is_named and catalog.shows(r) for r in catalog.filling):
        return "It is being filled. SHOW JOBS shows its progress."
    shown = [r for r in catalog.shown if r.is_named]
    same = [r for r in shown if r.name.lower() == name.lower()]
    if same:
        return "Did you mean " + " or ".join(f'"{_named(r, catalog)}"' for r in same[:3]) + "?"
    system = [known for known in SYSTEM_CATALOGS if schema is not None and known.startswith(f"{schema}.")]
    if f"{schema}.{name}" in system:
        return f"Only queries read it: SELECT * FROM {schema}.{name}."
    if system:
        return did_you_mean(f"{schema}.{name}", system) or f"There are {', '.join(sorted(system))}."
    if schema == "system":
        return "SHOW STREAMS, SHOW JOBS, SHOW ERRORS and information_schema describe the database."
    if schema is not None and schema_meant(schema, catalog) is None:
        return did_you_mean(schema, [*COMMON_NAMES, *catalog.schemas]) or f'There is no schema "{schema}".'
    return did_you_mean(name, [*others, *[_named(r, catalog) for r in shown]])


def _named(relation: Relation, catalog: Catalog) -> str:
    """The shortest name of a relation that the search path resolves."""
    return relation.name if catalog.by_name(relation.name) is relation else f"{relation.schema}.{relation.name}"


def with_current_names(tree: exp.Expression, catalog: Catalog, semantics: Semantics) -> exp.Expression:
    """The query with literals instead of `current_schema()`, `current_database()` and similar calls: the first schema
    of the search path, and the database.
    """
    schema = schema_shown(catalog.path[0], semantics) if catalog.path else None
    database = schema if semantics.schema_word == "database" else DATABASE
    names = {"current_schema": schema, "current_database": database, "current_catalog": database}
    for node in list(tree.find_all(exp.Anonymous, exp.CurrentSchema, exp.CurrentCatalog)):
        name = str(node.this).lower() if isinstance(node, exp.Anonymous) else node.sql_name().lower()
        if name in names and not node.expressions:
            value = names[name]
            text: exp.Expression = exp.null() if value is None else exp.Literal.string(value)
            set_span(text, own_span(node))
            item = node.parent if isinstance(node.parent, ImpliedAlias) else node
            made = (
                exp.alias_(exp.cast(text, exp.DType.VARCHAR), name, quoted=True)
                if isinstance(item.parent, exp.Select)
                else text
            )
            item.replace(made)
    return tree


def listed(path: str) -> tuple[str, ...]:
    """The names in a value of `search_path`."""
    return tuple(unquoted(part) for part in _LISTED.findall(path) if part)
