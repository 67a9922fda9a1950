"""A catalog and its content in DuckDB, from one script."""

from __future__ import annotations

from collections import Counter

from tests.algebra_to_sql import to_sql

from watersmeet.algebra.nodes import Aggregate, Expand, Filter, Join, Project, Scan, Values
from watersmeet.binder import bind_query
from watersmeet.catalog import Catalog, Index
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.definitions import CreateIndex, CreateRelation, CreateSource, CreateTable, CreateView
from watersmeet.errors import Error
from watersmeet.system import duckdbs
from watersmeet.unparsing import to_duckdb


def catalog_of(script: str) -> Catalog:
    """The catalog that the CREATE statements of a script make."""
    catalog = Catalog()
    for statement in parse(script):
        if isinstance(statement, CreateRelation):
            append_only = isinstance(statement, CreateSource) or (
                isinstance(statement, CreateTable) and statement.append_only
            )
            relation = statement.makes(
                catalog.new_id(statement.makes),
                statement.name,
                statement.columns,
                primary_key=statement.primary_key,
                append_only=append_only,
                sql=statement.sql,
            )
        elif isinstance(statement, CreateView):
            query = bind_query(statement.query, catalog, statement.text, column_names=statement.column_names)
            relation = statement.makes(
                catalog.new_id(statement.makes),
                statement.name,
                query.columns,
                sql=statement.sql,
                depends_on=query.depends_on,
            )
        else:
            assert isinstance(statement, CreateIndex)
            table = catalog.by_name(statement.table.name)
            relation = Index(
                catalog.new_id(Index),
                statement.name,
                table.columns,
                depends_on=(table.id,),
                index_columns=statement.columns,
            )
        catalog = catalog.with_relation(relation)
    return catalog


def bound(sql: str, catalog: Catalog, **options):
    """The bound query of one SELECT."""
    return bind_query(parse(sql)[0].query, catalog, sql, **options)


class Content:
    """The stored relations of a catalog in DuckDB: under their names, and under their ids as views."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.connection = duckdbs.connect(memory_limit="1GB", external_access=True)
        self.connection.execute("CREATE SCHEMA ids")
        for relation in catalog.relations.values():
            if relation.is_stored:
                columns = ", ".join(f'"{c.name}" {c.type.duckdb}' for c in relation.columns)
                self.connection.execute(f'CREATE TABLE "{relation.name}" ({columns})')
                self.connection.execute(f'CREATE VIEW ids."{relation.id}" AS SELECT * FROM main."{relation.name}"')

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def rows(self, duckdb_sql: str) -> list[tuple]:
        return self.connection.execute(duckdb_sql).fetchall()

    def batch(self, sql: str) -> list[tuple]:
        """The rows of a query as a batch query gives them."""
        return self.rows(to_duckdb(parse(sql)[0].query, self.catalog, sql).sql)

    def view(self, sql: str) -> list[tuple]:
        """The rows of a query as a view has them."""
        return self.tree(bound(sql, self.catalog, needs_names=False).tree)

    def tree(self, tree) -> list[tuple]:
        """The rows of a tree of the algebra."""
        translated = to_sql(tree)
        self.connection.execute("USE ids")
        try:
            return self.rows(translated)
        finally:
            self.connection.execute("USE main")


def multiset(rows: list[tuple]) -> Counter:
    """Rows as a multiset; numbers of all types compare by value, NaN equals NaN."""
    return Counter(repr(tuple(_plain(v) for v in row)) for row in rows)


def _plain(value):
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)) or type(value).__name__ == "Decimal":
        return "NaN" if value != value else f"{float(value):.9g}" if value else "0"
    return value


def outline(node, depth: int = 0) -> str:
    """A tree as text, one node a line."""
    line = "  " * depth + type(node).__name__.lower() + _details(node)
    return "\n".join([line, *[outline(i, depth + 1) for i in node.inputs]])


def _details(node) -> str:
    match node:
        case Scan():
            return f" {node.relation_name} {' '.join(c.id for c in node.outputs)}"
        case Filter():
            return f" {_sql(node.predicate)}"
        case Project():
            return " " + ", ".join(
                f"{_sql(e)} as {c.id}" if e.column != c.id else c.id for e, c in zip(node.exprs, node.outputs)
            )
        case Join():
            keys = [f"{_sql(k.left)} {'<=>' if k.null_safe else '='} {_sql(k.right)}" for k in node.keys]
            rest = f" | {_sql(node.residual)}" if node.residual is not None else ""
            return (
                f" {node.kind}"
                + (f" on {', '.join(keys)}" if keys else "")
                + rest
                + (" broadcast" if node.broadcast else "")
            )
        case Aggregate():
            calls = [
                f"{c.function}({'distinct ' if c.distinct else ''}{_sql(c.argument) if c.argument else '*'})"
                + (f" filter {_sql(c.filter)}" if c.filter else "")
                for c in node.calls
            ]
            return (
                f" by [{', '.join(_sql(k) for k in node.keys)}] {', '.join(calls)}".rstrip()
                + " -> "
                + " ".join(c.id for c in node.outputs)
            )
        case Expand():
            sets = ", ".join(f"[{', '.join(_sql(node.keys[i]) for i in s)}]" for s in node.sets)
            return f" [{sets}] -> {' '.join(c.id for c in node.made)}"
        case Values():
            return " " + " ".join("(" + ", ".join(_sql(s) for s in row) + ")" for row in node.rows)
        case _:
            return ""


def _sql(scalar) -> str:
    return scalar.sql().replace('"', "")


def refusal(call, *arguments, **options) -> str:
    """The text of the error that a call raises."""
    try:
        call(*arguments, **options)
    except Error as found:
        return str(found)
    raise AssertionError("it was accepted")
