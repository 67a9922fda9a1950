"""FROM: relations of the catalog, CTEs, subqueries and VALUES, each with its scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from watersmeet.algebra.relations import Cut, Project, Relation, Scan, Values
from watersmeet.algebra.trees import exactly
from watersmeet.binder.binding import (
    Binding,
    Bound,
    Environment,
    Output,
    Part,
    check_alias_list,
    read,
    scope_columns,
)
from watersmeet.binder.dialects.lenses.metadata import facets_of
from watersmeet.binder.dialects.lenses.records import HIDDEN, RESERVED, bind_records
from watersmeet.binder.dialects.sqlstream.rowtimes import check_marked, item_scope
from watersmeet.binder.dialects.timeplus.dictionaries import with_cache
from watersmeet.binder.lookups import check_clause, check_relation, is_looked_up, versions, wants_versions
from watersmeet.binder.newest import newest
from watersmeet.binder.scope import PLAIN, RecordKind, RecordLayout, Scope, ScopeContext, single
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import Catalog
from watersmeet.catalog import Relation as CatalogRelation
from watersmeet.dialects.queries import name_of, place_of
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import near_relations, relation_in_from
from watersmeet.dialects.script import read_script
from watersmeet.dialects.statements import CreateView
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.expressions.casts import unify
from watersmeet.expressions.context import Context
from watersmeet.expressions.parts import words_of
from watersmeet.expressions.scalars import bind_value

BindQuery = Callable[[exp.Expression, Environment, Binding], Bound]


def not_supported(feature: str, node: exp.Expression, env: Environment, *, hint: str | None = None) -> Error:
    """The error that a view can't have a feature."""
    return error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", hint=hint, sql=env.text, span=place_of(node))


def check_arguments(node: exp.Expression, known: frozenset[str], text: str, what: str) -> None:
    """FEATURE_NOT_SUPPORTED for parts of a node that nobody reads: nothing is dropped in silence."""
    for name, part in node.args.items():
        if part and name not in known:
            first = part[0] if isinstance(part, list) else part
            place = first if isinstance(first, exp.Expression) and place_of(first) else node
            feature = f"{words_of(name) or 'what stands here'} in {what}"
            raise error("FEATURE_NOT_SUPPORTED", f"{feature} is not supported", sql=text, span=place_of(place))


#: What `bind` and `translate` read of the nodes that surround a SELECT.
QUERY_PARTS: Final = frozenset(
    {"this", "expression", "expressions", "distinct", "with_", "order", "limit", "offset", "alias"}
)


def alias_of(node: exp.Expression) -> tuple[str | None, tuple[str, ...]]:
    """The alias of an item of FROM and its column list."""
    alias = node.args.get("alias")
    if not isinstance(alias, exp.TableAlias):
        return None, ()
    name = name_of(alias.this) if alias.this is not None else None
    return name, tuple(name_of(c.this if isinstance(c, exp.ColumnDef) else c) for c in alias.args.get("columns") or [])


_TABLE: Final = frozenset({"this", "alias", "db", "joins", "version", "static", "changelog", "nature", "over"})


def bind_table(node: exp.Table, env: Environment, binding: Binding, bind: BindQuery) -> tuple[Relation, Scope]:
    """A name in FROM: a CTE or a relation of the catalog."""
    check_arguments(node, _TABLE, env.text, "FROM")
    if not isinstance(node.this, exp.Identifier):
        raise not_supported(f"{node.this.key.upper()} in FROM of a view", node, env)
    if is_looked_up(node):
        check_clause(node, env)
    if node.args.get("static") and "changelog" in node.args:
        raise error(
            "JOIN_KIND",
            "The filled join data doesn't support changelog processing",
            sql=env.text,
            span=place_of(node),
            hint="table(stream) of a keyed stream has the last row of each key.",
        )
    name = name_of(node.this)
    alias, names = alias_of(node)
    schema = node.args.get("db")
    if schema is None and name in env.ctes:
        if node.args.get("static") or "changelog" in node.args:
            raise not_supported("table() or changelog() of a name of WITH", node, env, hint="Write it inside of WITH.")
        return _bind_cte(name, alias or name, names, node, env, binding, bind)
    relation = catalog_relation(node, binding.catalog, env.text, env.ctes)
    binding.depend(relation.id)
    if binding.semantics.records:
        return _bind_records(relation, alias or name, names, node, env, binding)
    if is_looked_up(node):
        check_relation(relation, node, env)
    part, binding.part = binding.part, _part(relation, node, binding)
    tree = _inline(relation, binding, bind) if relation.kind == "view" else _cut(scan(relation, binding), node, binding)
    if relation.dictionary is not None:
        tree = with_cache(tree, relation, binding, lambda stream: _cut(scan(stream, binding), node, binding))
    binding.part = part
    if "changelog" in node.args:
        tree = _changelog(tree, node, env, binding)
    shown = item_scope(
        alias or name,
        tree,
        names,
        f'table "{alias or name}"',
        node,
        env,
        rowtimes=binding.semantics.rowtimes,
        schema=relation.schema if alias is None else None,
    )
    if wants_versions(node):
        assert isinstance(tree, Scan), "check_relation has refused views"
        return versions(tree, node, env, binding), shown
    return tree, shown


def _bind_records(
    relation: CatalogRelation, alias: str, names: tuple[str, ...], node: exp.Table, env: Environment, binding: Binding
) -> tuple[Relation, Scope]:
    """A relation in a dialect of records: as a stream or as a table, as the SELECT says (LS-04)."""
    if relation.kind == "view":
        raise not_supported("a view in FROM", node, env, hint="Make a materialized view of it.")
    nature: RecordKind = (
        "table" if node.args.get("nature") is not None and node.args["nature"].name == "table" else "stream"
    )
    tree = bind_records(scan(relation, binding), relation, nature, binding, env.text, place_of(node))
    width = next((i for i, c in enumerate(tree.columns) if c.name in HIDDEN), len(tree.columns))
    check_alias_list(names, width, f'table "{alias}"', env.text, place_of(node))
    topic = relation.topic
    layout = PLAIN if topic is None else RecordLayout(topic.key_format, topic.partitions)
    return tree, _of_records(
        alias, tree, names, nature, layout, node, env, relation.schema if alias_of(node)[0] is None else None
    )


def _of_records(
    alias: str | None,
    tree: Relation,
    names: Sequence[str],
    nature: RecordKind,
    layout: RecordLayout,
    node: exp.Expression,
    env: Environment,
    schema: str | None = None,
) -> Scope:
    """The scope of records. INVALID_NAME for a field that gets the name of a facet.

    schema: of a relation without alias. names: of the first columns; the key and the time can be read by their own
    names, too, and stay what they are.
    """
    own = scope_columns(tree.columns)
    for column, name in zip(own, names, strict=False):
        if name != column.name and name in (*HIDDEN, *RESERVED):
            raise error(
                "INVALID_NAME",
                f'a list of names can\'t call field "{column.name}" "{name}"',
                sql=env.text,
                span=place_of(node),
                hint="Select it by that name: expression AS _key sets the key.",
            )
    shown = scope_columns(tree.columns, names)
    lost = [c for c in own if c.name in HIDDEN and c.name not in [s.name for s in shown]]
    return replace(single(alias, [*shown, *lost], schema), facets=facets_of(own, nature, layout))


def catalog_relation(node: exp.Table, catalog: Catalog, text: str, ctes: Iterable[str]) -> CatalogRelation:
    """The relation that a name in FROM stands for, with or without a schema; UNDEFINED_RELATION.

    ctes: names that are near, too.
    """
    found = relation_in_from(node, catalog)
    if found is None:
        name, schema = name_of(node.this), node.args.get("db")
        written = None if schema is None else name_of(schema)
        shown = name if written is None else f"{written}.{name}"
        raise error(
            "UNDEFINED_RELATION",
            f'relation "{shown}" does not exist',
            sql=text,
            span=place_of(node.this if schema is None else node),
            hint=near_relations(catalog, name, written, ctes),
        )
    return found


def _part(relation: CatalogRelation, node: exp.Table, binding: Binding) -> Part:
    """Which rows of a relation count: an external table stands still (TP-18), a dictionary follows its source
    (TP-19).
    """
    if node.args.get("static") or (relation.external is not None and relation.dictionary is None):
        return "before"
    if node.meta.get("rewound") and binding.part == "new" and binding.settings.get("seek_to") is None:
        return "all"  # its condition on the time asks for what was there
    return "all" if relation.dictionary is not None else binding.part


def _cut(tree: Scan, node: exp.Table, binding: Binding) -> Relation:
    """The part of a relation that counts.

    What is no stream beside streams stands still, unless the query says that it follows it.
    """
    if binding.part == "before" or (binding.still and not tree.watermarks and not is_looked_up(node)):
        return Cut(tree, "before", binding.moment)
    only_new = binding.part == "new" or (binding.part == "new of streams" and bool(tree.watermarks))
    return Cut(tree, "after", binding.moment) if only_new and tree.append_only else tree


def _changelog(tree: Relation, node: exp.Table, env: Environment, binding: Binding) -> Relation:
    """`changelog(stream, key, …)`: the last row of each key; of a stream that takes rows back by itself, what it is
    (TP-16).
    """
    places = node.args["changelog"]
    if isinstance(tree, Scan) and not tree.append_only and not places:
        return tree
    by_name = {c.name: c for c in tree.columns}
    for place in places:
        if name_of(place) not in by_name:
            raise error(
                "UNDEFINED_COLUMN",
                f'column "{name_of(place)}" does not exist',
                sql=env.text,
                span=place_of(place),
                hint=did_you_mean(name_of(place), by_name),
            )
    found = newest(tree, [read(by_name[name_of(p)]) for p in places], binding)
    if not places or found is None:
        raise not_supported(
            "changelog() of this relation", node, env, hint="Write changelog(stream, key) with an append stream."
        )
    return exactly(found[0], tree.columns)


def scan(relation: CatalogRelation, binding: Binding) -> Scan:
    """The scan of a stored relation or source; of an index, of its table."""
    if relation.kind == "index":
        relation = binding.catalog.relations[relation.depends_on[0]]
        binding.depend(relation.id)
    outputs = tuple(binding.new_column(f.name, f.type, f.nullable) for f in relation.columns)
    by_name = {c.name: c.id for c in outputs}
    key = tuple(by_name[k] for k in relation.primary_key)
    promised = (
        relation.topic is None or binding.semantics.records
    )  # records may be late, and only joins of records reckon with that
    times = tuple((by_name[n], w) for n, w in relation.time_columns.items()) if promised else ()
    return Scan(
        relation.id,
        relation.shown,
        outputs,
        tuple(f.name for f in relation.as_stored.columns),
        relation.append_only,
        key,
        times,
    )


def _inline(view: CatalogRelation, binding: Binding, bind: BindQuery) -> Relation:
    """The tree of a view's own query, its columns under the view's names."""
    statement = view_statement(view)
    depends_on, dialect, catalog = list(binding.depends_on), binding.dialect, binding.catalog
    binding.dialect, binding.catalog = view.dialect, catalog.seen_by(view)
    query, _ = inlined(statement.query, binding.catalog, view.dialect, statement.text)
    bound = bind(query, Environment(statement.text), binding)
    binding.depends_on, binding.dialect, binding.catalog = depends_on, dialect, catalog
    if language_named(view.dialect).semantics.rowtimes:
        check_marked(statement.query, bound.relation, statement.text)
    names = tuple(f.name for f in view.columns)
    if tuple(c.name for c in bound.relation.columns) == names:
        return bound.relation
    outputs = tuple(replace(c, name=n) for c, n in zip(bound.relation.columns, names, strict=True))
    return Project(bound.relation, outputs, tuple(read(c) for c in bound.relation.columns))


def view_statement(view: CatalogRelation) -> CreateView:
    """The parsed statement that made a view, in the dialect that it was made in."""
    text = view.query or view.sql
    statement = read_script(text, language_named(view.dialect))[0]
    assert isinstance(statement, CreateView), f"{view.name} is stored as {view.sql}"
    return statement


def _bind_cte(
    name: str,
    alias: str,
    names: tuple[str, ...],
    node: exp.Expression,
    env: Environment,
    binding: Binding,
    bind: BindQuery,
) -> tuple[Relation, Scope]:
    cte = env.ctes[name]
    binding.named.add(cte)
    bound = bind(cte.query, cte.environment, binding)
    width = len(bound.outputs) - bound.facets
    check_alias_list(cte.names, width, f'table "{name}"', env.text, place_of(node))
    shown = (*names, *cte.names[len(names) :])
    if bound.nature is not None:
        check_alias_list(names, width, f'table "{alias}"', env.text, place_of(node))
        return bound.relation, _of_records(alias, bound.relation, shown, bound.nature, bound.layout, node, env)
    return bound.relation, item_scope(
        alias, bound.relation, shown, f'table "{alias}"', node, env, rowtimes=binding.semantics.rowtimes
    )


def bind_derived(
    node: exp.Subquery | exp.Lateral, env: Environment, binding: Binding, bind: BindQuery
) -> tuple[Relation, Scope]:
    """`(SELECT …) alias`; env: without its neighbours unless it is LATERAL."""
    bound = bind(node.this, env, binding)
    alias, names = alias_of(node)
    if bound.nature is not None:
        check_alias_list(names, len(bound.outputs) - bound.facets, f'table "{alias}"', env.text, place_of(node))
        return bound.relation, _of_records(alias, bound.relation, names, bound.nature, bound.layout, node, env)
    return bound.relation, item_scope(
        alias, bound.relation, names, f'table "{alias}"', node, env, rowtimes=binding.semantics.rowtimes
    )


def bind_values(node: exp.Values, env: Environment, binding: Binding) -> Bound:
    """`VALUES (…), (…)`: columns column1, column2 …."""
    ctx = Context(env.text, "VALUES") if env.outer is None else ScopeContext(env.text, Scope(outer=env.outer), "VALUES")
    rows = [list(t.expressions) if isinstance(t, exp.Tuple) else [t] for t in node.expressions]
    width = len(rows[0])
    for row in rows:
        if len(row) != width:
            raise ctx.error("SYNTAX_ERROR", "VALUES lists must all be the same length", row[0])
    columns: list[list[Any]] = []
    outputs = []
    for i in range(width):
        places = [row[i] for row in rows]
        values = [bind_value(p, ctx) for p in places]
        settled, kind = unify(values, places, ctx, "VALUES")
        scalars = [v.finish() for v in settled]
        columns.append(scalars)
        column = binding.new_column(f"column{i + 1}", kind, any(s.nullable for s in scalars))
        outputs.append(Output(column, unknown=all(v.unknown for v in values)))
    tree = Values(tuple(zip(*columns, strict=True)), tuple(o.column for o in outputs))
    return Bound(tree, tuple(outputs))
