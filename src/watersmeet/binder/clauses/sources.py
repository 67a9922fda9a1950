"""Binds items of FROM, each with its scope: relations, CTEs, subqueries, VALUES, dictionaries, system relations, files.

A view binds a CTE again at each reference. A batch query evaluates it once, and allows it to be recursive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.bounded import FileScan, Named, Recursion, SystemScan, TopicScan
from watersmeet.algebra.nodes import Column, Cut, Join, KeyPair, Node, Project, Reopened, Scan, Union, Values
from watersmeet.algebra.scalars import Oracle, Scalar
from watersmeet.algebra.trees import exactly, read
from watersmeet.binder.clauses.lookups import (
    CHANGE_ROW,
    check_clause,
    check_relation,
    is_looked_up,
    log_of,
    past_scan,
    versions,
    wants_versions,
)
from watersmeet.binder.context.binding import (
    Bound,
    Cte,
    Environment,
    OutputColumn,
    Part,
    check_alias_list,
    check_width,
    scope_columns,
    value_of,
)
from watersmeet.binder.context.rules import Binding, BindQuery, DialectRules, NamedItem, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, single, unknown_source
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.catalog import (
    SYSTEM_CATALOGS,
    CapturedDatabase,
    Catalog,
    Connection,
    ExternalTable,
    FormatSchema,
    Index,
    NamedCollection,
    NamedSubscription,
    Relation,
    Server,
    Sink,
    Source,
    View,
    qualified,
)
from watersmeet.catalog.parts import DEAD_LETTER_COLUMNS
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import near_relations, relation_in_from, with_current_names
from watersmeet.dialects.script import read_script
from watersmeet.dialects.tree.definitions import CreateView
from watersmeet.dialects.tree.nodes import LoggedTable, own_parts
from watersmeet.dialects.tree.queries import name_of, node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.expressions.casts import unify
from watersmeet.expressions.context import Context, Value, common_type, duckdb_cast, first_line
from watersmeet.expressions.scalars import bind_value, words_of
from watersmeet.expressions.setfunctions import TableCall
from watersmeet.values.types import VARCHAR, Schema, SqlType


def named_rows(name: str, cte: Cte, binding: Binding, bind: BindQuery) -> Bound:
    """The rows of the CTE `name`, with new ids."""
    if isinstance(cte.query, LoggedTable):
        return _log(cte, cte.query, binding, bind)
    if not binding.rules.batch:
        binding.collected.named.setdefault(cte)
        return bind(cte.query, cte.environment, binding)
    if cte.round is not None:
        called, columns = cte.round
        return _read(Named(called, None, columns), [OutputColumn(c) for c in columns], binding)
    found = binding.collected.named.get(cte)
    if found is None:
        found = _recursion(name, cte, binding, bind) if cte.recursive else bind(cte.query, cte.environment, binding)
        made = Named(binding.new_name(), found.relation, found.relation.columns)
        binding.collected.named[cte] = found = replace(found, relation=made)
    assert isinstance(found.relation, Named)
    return _read(found.relation, found.outputs, binding)


def _log(cte: Cte, node: LoggedTable, binding: Binding, bind: BindQuery) -> Bound:
    """The changes of a relation as rows: `WITH name AS CHANGELOG FROM relation`."""
    if binding.rules.batch:
        raise cte.environment.not_supported(
            "AS CHANGELOG in a query that ends",
            node,
            detail="A log contains the changes after its creation, which only a materialized view or a sink stores.",
            hint="Use AS CHANGELOG in CREATE MATERIALIZED VIEW or CREATE SINK.",
        )
    binding.collected.named.setdefault(cte)
    tree, _ = bind_table(node, cte.environment, binding, bind)
    log = log_of(tree, binding)
    return Bound(log, tuple(OutputColumn(c) for c in log.columns))


def _read(named: Named, outputs: Sequence[OutputColumn], binding: Binding) -> Bound:
    columns = tuple(binding.new_column(c.name, c.type, c.nullable) for c in named.columns)
    found = (replace(o, column=c) for o, c in zip(outputs, columns, strict=True))
    return Bound(replace(named, outputs=columns), tuple(found))


def _recursion(name: str, cte: Cte, binding: Binding, bind: BindQuery) -> Bound:
    """Binds `anchor UNION [ALL] step`, where the step reads the columns of the anchor."""
    node, env = cte.query, cte.environment
    assert isinstance(node, exp.Union)
    for part in ("with_", "order", "limit", "offset"):
        if node.args.get(part):
            raise env.not_supported(
                f"{words_of(part)} of a recursive query",
                node.args[part],
                hint="Write it in the query that reads the recursive one.",
            )
    anchor = bind(node.this, env, binding)
    columns = tuple(binding.new_column(c.name, c.type, nullable=True) for c in anchor.relation.columns)
    called = binding.new_name()
    round_ = Cte(node, cte.names, env, round=(called, columns))
    step = bind(node.expression, Environment(env.text, {**env.ctes, name: round_}, env.outer), binding)
    check_width("UNION", len(anchor.outputs), len(step.outputs), node_span(node.expression), env.text)
    made = Recursion(
        anchor.relation, _converted(step.relation, columns, binding), called, bool(node.args.get("distinct")), columns
    )
    return Bound(made, tuple(replace(o, column=c) for o, c in zip(anchor.outputs, columns, strict=True)))


def _converted(step: Node, columns: tuple[Column, ...], binding: Binding) -> Node:
    """The rows of a step, converted to the types of the anchor."""
    if all(s.type == c.type for s, c in zip(step.columns, columns, strict=True)):
        return step
    outputs = tuple(binding.new_column(c.name, c.type, nullable=True) for c in columns)
    values = (duckdb_cast(value_of(c).expression, o.type) for c, o in zip(step.columns, outputs, strict=True))
    return Project(step, outputs, tuple(Scalar(v, o.type) for v, o in zip(values, outputs, strict=True)))


def with_cache(source: Node, relation: Relation, binding: Binding, scan: Callable[[Relation], Node]) -> Node:
    """The content of a dictionary: the rows of its cache stream, and the rows of `source` whose keys the cache
    lacks.
    """
    dictionary = relation.dictionary
    assert dictionary is not None
    if not dictionary.stream:
        return source
    stream = binding.catalog.relations[dictionary.stream]
    names = [c.name for c in relation.columns]
    cached, other = (
        exactly(tree, [c for n in names for c in tree.columns if c.name == n]) for tree in (scan(stream), scan(stream))
    )
    places = [names.index(k) for k in relation.primary_key]
    keys = tuple(KeyPair(read(source.columns[i]), read(other.columns[i])) for i in places)
    rest = Join(source, other, "anti", keys)
    outputs = tuple(
        binding.new_column(c.name, c.type, c.nullable or o.nullable)
        for c, o in zip(source.columns, cached.columns, strict=True)
    )
    return Union((cached, rest), outputs)


DEAD_LETTERS: Final = "watersmeet.dead_letters"

#: The columns of each system relation.
SYSTEM_RELATIONS: Final[dict[str, Schema]] = {DEAD_LETTERS: DEAD_LETTER_COLUMNS, **SYSTEM_CATALOGS}

#: Other systems' names of system relations. Timeplus, "Dead letter queue".
_OTHER_NAMES: Final = {"system.mat_view_dlq": DEAD_LETTERS}


def system_relation(node: exp.Table) -> str | None:
    """The name of the system relation in an item of FROM, unless a relation of the catalog has the same name."""
    schema = node.args.get("db")
    if not isinstance(node.this, exp.Identifier):
        return None
    name = name_of(node.this).lower()
    name = qualified(name) if schema is None else f"{name_of(schema).lower()}.{name}"
    name = _OTHER_NAMES.get(name, name)
    return name if name in SYSTEM_RELATIONS else None


def bind_system(
    name: str, alias: str | None, names: tuple[str, ...], node: exp.Table, env: Environment, binding: Binding
) -> Sourced:
    """The rows of a system relation. Raises FEATURE_NOT_SUPPORTED in a query that does not end, because changes of
    these rows are not tracked.

    alias, names: the aliases of the item and of its columns as written.
    """
    if not binding.rules.batch:
        raise env.not_supported(
            f"{name} in {binding.rules.query_called}",
            node,
            detail="A system relation shows the present state. It has no changes that a view could follow.",
            hint="Read it in a SELECT that ends.",
        )
    binding.read_system(name)
    outputs = tuple(binding.new_column(c.name, c.type, c.nullable) for c in SYSTEM_RELATIONS[name])
    title = alias or name_of(node.this)
    check_alias_list(names, len(outputs), f'table "{title}"', env.text, node_span(node))
    return SystemScan(name, outputs), single(title, scope_columns(outputs, names))


READERS: Final = frozenset({"read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_ndjson", "read_parquet"})

#: A function that reads the columns of files without a cache.
_FILES: Final = Oracle(external_access=True)


def files_refused(what: str, *, sql: str | None = None, span: Span | None = None) -> Error:
    """The error FILES_NOT_ALLOWED for an item that reads local files."""
    return error(
        "FILES_NOT_ALLOWED",
        f"{what} is not possible on a connection that may not read files",
        sql=sql,
        span=span,
        hint="Connect with allow_files = True, or serve with --allow-files.",
    )


def bind_files(call: TableCall, item: exp.Expression, env: Environment, binding: Binding, *, allowed: bool) -> Sourced:
    """Binds `name('path', option = value, …)` as an item of FROM. Raises INVALID_VALUE if DuckDB can't read the
    file.
    """
    name, arguments, node = call.calls[0]
    if not allowed:
        raise files_refused(f"{name}()", sql=env.text, span=node_span(node))
    ctx = ScopeContext(env.text, Scope(outer=env.outer), "functions in FROM")
    made = exp.Anonymous(this=name, expressions=[_argument(a, ctx) for a in arguments])
    try:
        found = _FILES.columns_of(made.sql(dialect="duckdb"))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
    outputs = []
    for column, kind, shown in found:
        if kind is None:
            raise ctx.not_supported(f'column "{column}" of DuckDB\'s type {shown}', node)
        outputs.append(binding.new_column(column.lower(), kind, nullable=True))
    check_alias_list(call.names, len(outputs), f'table "{call.title}"', env.text, node_span(item))
    tree = FileScan(made, tuple(outputs), tuple(column for column, _, _ in found))
    return tree, single(call.title, scope_columns(outputs, call.names))


def _argument(node: exp.Expression, ctx: Context) -> exp.Expression:
    if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column):
        option = exp.to_identifier(name_of(node.this.this))
        return exp.EQ(this=exp.column(option), expression=_constant(node.expression, ctx))
    return _constant(node, ctx)


def _constant(node: exp.Expression, ctx: Context) -> exp.Expression:
    value = bind_value(node, ctx)
    if value.expression.find(exp.Column, exp.Subquery) is not None:
        raise ctx.not_supported("an argument that is not a constant", node)
    return value.expression


#: Relations that have no rows.
_UNREADABLE: Final = (CapturedDatabase, Connection, FormatSchema, NamedCollection, NamedSubscription, Server, Sink)

#: Hints for relations without rows.
_READABLE: Final[dict[type[Relation], str]] = {
    Sink: "Read the relation that it delivers.",
    NamedSubscription: "DECLARE name SUBSCRIPTION CURSOR FOR it, then FETCH; in Python, connection.subscribe(…).",
    CapturedDatabase: "Read a table of it: CREATE TABLE … FROM source TABLE 'schema.table'.",
}

#: The parts of a SELECT that binders read.
SELECT_PARTS: Final = frozenset({
    "with_", "expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "limit", "offset",
    "laterals", "windows",
})  # fmt: skip


def check_arguments(node: exp.Expression, known: frozenset[str], text: str, what: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for parts of a node that the binder does not read, so that no part is ignored
    silently.
    """
    for name, part in node.args.items():
        if part and name not in known:
            first = part[0] if isinstance(part, list) else part
            place = first if isinstance(first, exp.Expression) and node_span(first) else node
            feature = f"{words_of(name) or 'what stands here'} in {what}"
            raise not_supported(feature, text, node_span(place))


#: The parts that `bind` reads in the nodes around a SELECT.
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


_TABLE: Final = frozenset({"this", "alias", "db", "joins", "version", "only"})  # no table inherits from another


def bind_table(node: exp.Table, env: Environment, binding: Binding, bind: BindQuery) -> Sourced:
    """Binds a name in FROM: a CTE or a relation of the catalog."""
    check_arguments(node, _TABLE | own_parts(node), env.text, "FROM")
    if not isinstance(node.this, exp.Identifier):
        raise env.not_supported(f"{node.this.key.upper()} in FROM of {binding.rules.query_called}", node)
    if is_looked_up(node):
        check_clause(node, env)
    name = name_of(node.this)
    alias, names = alias_of(node)
    if node.args.get("db") is None and name in env.ctes:
        return _bind_cte(name, alias or name, names, node, env, binding, bind)
    system = system_relation(node)
    if system is not None and relation_in_from(node, binding.catalog) is None:
        return bind_system(system, alias, names, node, env, binding)
    schema = node.args.get("db")
    if schema is not None and (hint := binding.rules.semantics.lacking_schemas.get(name_of(schema))) is not None:
        raise env.not_supported(f"{name_of(schema)}.{name}", node, hint=hint)
    relation = catalog_relation(node, binding.catalog, env.text, env.ctes)
    if isinstance(relation, _UNREADABLE):
        raise env.error(
            "CATALOG_TYPE_MISMATCH",
            f"{relation.title} can't be read by a query",
            node,
            hint=_READABLE.get(type(relation), "Read a stream of it."),
        )
    binding.depend(relation.id)
    item = NamedItem(alias or name, names, f'table "{alias or name}"', node, relation.schema if alias is None else None)

    def plain(part: Part | None) -> Sourced:
        return _rows(relation, item, env, replace(binding, part=part or _part(relation, node, binding)), bind)

    found, scope = binding.rules.relation(relation, item, env, binding, plain)
    return found, _listed(scope, relation.unlisted)


def _listed(scope: Scope, unlisted: Sequence[str]) -> Scope:
    """The scope of a relation whose `unlisted` columns `*` omits."""
    if not unlisted:
        return scope

    def marked(columns: Iterable[ScopeColumn]) -> tuple[ScopeColumn, ...]:
        return tuple(replace(c, unlisted=c.name in unlisted) for c in columns)

    tables = tuple(replace(t, columns=marked(t.columns)) for t in scope.tables)
    return replace(scope, tables=tables, visible=marked(scope.visible))


def _rows(relation: Relation, item: NamedItem, env: Environment, binding: Binding, bind: BindQuery) -> Sourced:
    """The rows of a relation that `binding` makes the query read."""
    node = item.node
    if is_looked_up(node):
        check_relation(relation, node, env)
    tree: Node
    if isinstance(relation, View):
        tree = _inline(relation, node, binding, bind)
    elif (relation.reopened or (binding.rules.batch and is_read_again(relation))) and binding.past is None:
        bind_topic = _topic_now if binding.rules.batch else _reopened
        tree = bind_topic(relation, node, env, binding)
    else:
        tree = _stored(relation, node, env, binding)
    if relation.dictionary is not None:
        tree = with_cache(tree, relation, binding, lambda stream: _stored(stream, node, env, binding))
    shown = binding.rules.item_scope(tree, item, env)
    if wants_versions(node):
        assert isinstance(tree, Scan), "check_relation has refused views"
        return versions(tree, node, env, binding), shown
    return tree, shown


def _stored(relation: Relation, node: exp.Table, env: Environment, binding: Binding) -> Node:
    if binding.past is not None:
        return past_scan(relation, binding.past, node, env, binding)
    return _cut(scan(relation, binding), node, binding)


def catalog_relation(node: exp.Table, catalog: Catalog, text: str, ctes: Iterable[str]) -> Relation:
    """The relation for a name in FROM, which a schema may qualify. Raises UNDEFINED_RELATION.

    ctes: more names for the hint.
    """
    found = relation_in_from(node, catalog)
    if found is None:
        name, schema = name_of(node.this), node.args.get("db")
        written = None if schema is None else name_of(schema)
        shown = name if written is None else f"{written}.{name}"
        raise node_error(
            text,
            node.this if schema is None else node,
            "UNDEFINED_RELATION",
            f'relation "{shown}" does not exist',
            hint=near_relations(catalog, name, written, ctes),
        )
    return found


def _part(relation: Relation, node: exp.Table, binding: Binding) -> Part:
    """The rows that the query reads. External tables never change (TP-18) unless they are looked up; dictionaries
    change (TP-19).
    """
    if relation.dictionary is not None or (isinstance(relation, ExternalTable) and is_looked_up(node)):
        return "all"
    return "before" if relation.is_external else binding.part


def _cut(tree: Scan, node: exp.Table, binding: Binding) -> Node:
    """The part of a relation that the query reads.

    In a query over streams, other relations never change unless they are looked up.
    """
    if binding.part == "before" or (binding.still and not tree.watermarks and not is_looked_up(node)):
        return Cut(tree, "before", binding.moment)
    only_new = binding.part == "new" or (binding.part == "new of streams" and bool(tree.watermarks))
    return Cut(tree, "after", binding.moment) if only_new and tree.append_only else tree


def _reopened(relation: Relation, node: exp.Table, env: Environment, binding: Binding) -> Node:
    """A source that each query reads separately from its own offset."""
    if relation.connector["connector"] == "rotating_file":
        raise env.not_supported(f"reading {relation.title}", node, hint="It has a FORMATTER: only pumps write it.")
    if binding.part == "before":
        raise env.not_supported(
            f"{relation.title} as it is now, in a query that runs",
            node,
            hint="Without table(…) it is read as a stream.",
        )
    declared = any(name.startswith("scan.startup.") for name in relation.connector)
    start = binding.settings.get("seek_to", "latest" if binding.part != "all" and not declared else "")
    strict = binding.rules.stops_at_bad_messages(binding.settings)
    return Reopened(scan(relation, binding), "after", binding.moment, start, _shards(binding), strict)


#: The connectors of sources whose present content a query that ends can read; "" is the source of a checked script.
_READ_AGAIN: Final = frozenset({"", "azblob", "datagen", "file", "gcs", "kafka", "kinesis", "nats", "posix_fs", "s3"})


def is_read_again(relation: Relation) -> bool:
    """Whether a query that ends reads the present content of a source, each time from its beginning.

    RisingWave, "Query Kafka sources". The values of generated columns are only computed for views.
    """
    return (
        isinstance(relation, Source)
        and relation.connector.get("connector", "").lower() in _READ_AGAIN
        and not relation.generated
    )


def _topic_now(relation: Relation, node: exp.Table, env: Environment, binding: Binding) -> Node:
    """The present messages of a topic, all or from an offset on."""
    if binding.rules.stops_at_bad_messages(binding.settings):
        raise env.not_supported("recovery_policy = 'strict' of a query that ends", node)
    outputs = tuple(binding.new_column(f.name, f.type, f.nullable) for f in relation.columns)
    start = binding.settings.get("seek_to", "earliest")
    found = TopicScan(relation.id, binding.new_name(), start, _shards(binding), outputs)
    binding.collected.topics.append(found)
    return found


def _shards(binding: Binding) -> str:
    return binding.settings.get("shards", "").replace(" ", "")


def scan(relation: Relation, binding: Binding) -> Scan:
    """The scan of a stored relation or source. An index scans its table."""
    if isinstance(relation, Index):
        relation = binding.catalog.relations[relation.depends_on[0]]
        binding.depend(relation.id)
    binding.read(relation.id)
    outputs = tuple(binding.new_column(f.name, f.type, f.nullable) for f in relation.columns)
    by_name = {c.name: c.id for c in outputs}
    key = tuple(by_name[k] for k in relation.primary_key)
    times = tuple((by_name[n], w) for n, w in binding.rules.time_columns(relation).items())
    return Scan(
        relation.id,
        relation.shown,
        outputs,
        tuple(f.name for f in relation.as_stored.columns),
        relation.append_only,
        key,
        times,
    )


def _inline(view: Relation, node: exp.Table, binding: Binding, bind: BindQuery) -> Node:
    """The tree of a view's own query, with the view's column names. node: names the view in FROM."""
    statement = view_statement(view)
    rules = binding.rules_of(view.dialect)
    inner = replace(binding, rules=rules, catalog=binding.catalog.seen_by(view), depends_on=[])
    query, _ = inlined(statement.query, inner.catalog, view.dialect, statement.text)
    query = rules.query_of_view(query, node)
    if rules.batch:
        query = with_current_names(query, inner.catalog, rules.semantics)
    outer = Scope(batch=True) if rules.batch else None
    bound = bind(query, Environment(statement.text, outer=outer), inner)
    rules.check_query(statement.query, bound.relation, statement.text)
    made = tuple(c.name for c in bound.relation.columns)
    names = (*(f.name for f in view.columns), *made[len(view.columns) :])
    if made == names:
        return bound.relation
    outputs = tuple(replace(c, name=n) for c, n in zip(bound.relation.columns, names, strict=True))
    return Project(bound.relation, outputs, tuple(read(c) for c in bound.relation.columns))


def view_statement(view: Relation) -> CreateView:
    """The statement that created a view, parsed in the dialect in which it was created."""
    text = view.view_text
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
) -> Sourced:
    cte = env.ctes[name]
    bound = named_rows(name, cte, binding, bind)
    check_alias_list(cte.names, bound.width, f'table "{name}"', env.text, node_span(node))
    item = NamedItem(alias, (*names, *cte.names[len(names) :]), f'table "{alias}"', node)
    scope = binding.rules.item_scope(bound.relation, item, env, bound)
    return bound.relation, _listed(scope, (CHANGE_ROW,)) if isinstance(cte.query, LoggedTable) else scope


def bind_derived(node: exp.Subquery | exp.Lateral, env: Environment, binding: Binding, bind: BindQuery) -> Sourced:
    """Binds `(SELECT …) alias`. env: includes the items to its left only if it is LATERAL."""
    bound = bind(node.this, env, binding)
    alias, names = alias_of(node)
    item = NamedItem(alias, names, f'table "{alias}"', node)
    return bound.relation, binding.rules.item_scope(bound.relation, item, env, bound)


def _as_selects(rows: Sequence[Sequence[exp.Expression]]) -> exp.Expression:
    """`SELECT … UNION ALL SELECT …` with the rows of VALUES."""
    selects = [exp.select(*(exp.alias_(v.copy(), f"column{i + 1}") for i, v in enumerate(row))) for row in rows]
    return reduce(lambda left, right: exp.Union(this=left, expression=right, distinct=False), selects)


def bind_values(node: exp.Values, env: Environment, binding: Binding, bind: BindQuery) -> Bound:
    """Binds `VALUES (…), (…)`, whose columns are column1, column2 …."""
    ctx = Context(env.text, "VALUES") if env.outer is None else ScopeContext(env.text, Scope(outer=env.outer), "VALUES")
    rows = [list(t.expressions) if isinstance(t, exp.Tuple) else [t] for t in node.expressions]
    width = len(rows[0])
    for row in rows:
        if len(row) != width:
            raise ctx.error("SYNTAX_ERROR", "VALUES lists must all be the same length", row[0])
    if any(value.find(exp.Query) is not None for row in rows for value in row):
        return bind(_as_selects(rows), env, binding)
    columns: list[list[Any]] = []
    outputs = []
    for i in range(width):
        places = [row[i] for row in rows]
        values = [bind_value(p, ctx) for p in places]
        scalars, kind = _cells(values, places, ctx, cast_whole=binding.rules.batch and len(rows) > 1)
        columns.append(scalars)
        column = binding.new_column(f"column{i + 1}", kind, any(s.nullable for s in scalars))
        outputs.append(OutputColumn(column, unknown=all(v.unknown for v in values)))
    tree = Values(tuple(zip(*columns, strict=True)), tuple(o.column for o in outputs))
    return Bound(tree, tuple(outputs))


def _cells(
    values: list[Value], places: list[exp.Expression], ctx: Context, *, cast_whole: bool
) -> tuple[list[Scalar], SqlType]:
    """A column of VALUES and its type. cast_whole: whether literals stay untyped, because the whole column is cast
    later.
    """
    kinds = {v.type for v in values if not v.unknown}
    if cast_whole and all(v.is_null or v.is_number_literal or (v.unknown and not kinds) for v in values):
        kind = common_type(list(kinds)) if kinds else VARCHAR
        assert kind is not None, "numbers have a common type"
        return [Scalar(v.expression, kind, v.nullable) for v in values], kind
    settled, kind = unify(values, places, ctx, "VALUES")
    return [v.finish() for v in settled], kind


def star_of(node: exp.Expression) -> exp.Star | None:
    """The star in `*` or `t.*`."""
    if isinstance(node, exp.Star):
        return node
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        return node.this
    return None


def expanded(star: exp.Star, node: exp.Expression, scope: Scope, text: str, rules: DialectRules) -> list[ScopeColumn]:
    """The columns of the select item `node`, which is `star` or a relation with `star`.

    Raises UNDEFINED_RELATION, SYNTAX_ERROR and the errors of `DialectRules.starred`.
    """
    check_arguments(star, frozenset({"except_", "except"}), text, "*")
    if isinstance(node, exp.Column):
        qualifier = scope.qualifier(node)
        table = scope.table(*qualifier)
        if table is None:
            raise node_error(
                text,
                node,
                "UNDEFINED_RELATION",
                unknown_source(".".join(qualifier), node),
                hint=did_you_mean(".".join(qualifier), scope.aliases(len(qualifier))),
            )
        columns = list(table.columns)
    elif not scope.tables:
        raise node_error(text, node, "SYNTAX_ERROR", "SELECT * with no tables specified is not valid")
    else:
        columns = list(scope.visible)
    dropped = [
        name_of(i.this if isinstance(i, exp.Column) else i)
        for i in star.args.get("except_") or star.args.get("except") or []
    ]
    return [c for c in rules.starred(columns, node, text) if c.name not in dropped and not c.unlisted]
