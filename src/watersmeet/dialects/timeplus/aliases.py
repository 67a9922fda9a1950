"""Aliases as ClickHouse reads them: what a SELECT calls so anywhere can be read in all of its clauses, and in `WITH 5
AS five`.

A name without a relation in front means the alias, also where a column has it (ClickHouse: `prefer_column_name_to_alias
= 0`, its default); in the expression that the alias stands for it means the column. A subquery sees those of WITH, but
not those of the SELECT around it. Names are replaced by copies of what they stand for, which know their place in the
text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import ImpliedAlias
from watersmeet.dialects.tree.queries import depth_checked, place_of
from watersmeet.errors import error

#: What the copies of a statement may have in all: aliases of aliases may double each time.
_NODES: Final = 50_000


class _Writing:
    """Puts copies in the place of names. FEATURE_NOT_SUPPORTED once they are too many."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = _NODES

    def put(self, column: exp.Column, value: exp.Expression) -> exp.Expression:
        """Puts a copy of the value in the place of the column; an item of the select list keeps the name."""
        self.left -= sum(1 for _ in value.walk())
        if self.left < 0:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "aliases that expand to such a large expression are not supported",
                sql=self.text,
                span=place_of(column),
            )
        made = value.copy()
        if isinstance(made, (exp.Binary, exp.Not)):
            made = exp.Paren(this=made)
        if isinstance(column.parent, exp.Select) and column.arg_key == "expressions":
            made = exp.Alias(this=made, alias=column.this.copy())
        column.replace(made)
        return made


def with_aliases(tree: exp.Expression, text: str) -> exp.Expression:
    """The tree without names that stand for expressions. CYCLIC_ALIASES, FEATURE_NOT_SUPPORTED (too large)."""
    with depth_checked(text):
        writing = _Writing(text)
        for query in reversed(
            list(tree.find_all(exp.Query))
        ):  # the inner ones first: what they call so hides that of those around
            _replace_constants(query, writing)
        for select in reversed(list(tree.find_all(exp.Select))):  # copies of the inner ones are finished
            _Select(select, writing).replace()
    return tree


def _replace_constants(query: exp.Expression, writing: _Writing) -> None:
    """`WITH 5 AS five, (SELECT max(i) FROM table(s)) AS most`: seen in the whole query."""
    clause = query.args.get("with_")
    for part in [] if clause is None else list(clause.expressions):
        if not part.args.get("scalar"):
            continue
        name, value = part.alias, part.this
        part.pop()
        for column in list(query.find_all(exp.Column)):
            if _name(column) == name:
                writing.put(column, value)
    if clause is not None and not clause.expressions:
        clause.pop()


class _Select:
    """The aliases of one SELECT."""

    def __init__(self, node: exp.Select, writing: _Writing) -> None:
        self.node = node
        self.writing = writing
        self.aliases: dict[str, exp.Expression] = {}
        self.twice: set[str] = set()

    def replace(self) -> None:
        """Replaces the names in all clauses."""
        named = [n for n in _own(self.node) if _is_alias(n) and not isinstance(n.parent, exp.Star)]
        for alias in named:
            if self.aliases.setdefault(alias.alias, alias.this) != alias.this:
                self.twice.add(alias.alias)
        if not self.aliases:
            return
        done: dict[str, exp.Expression] = {}
        for alias in named:
            if self.aliases[alias.alias] is alias.this:
                self._expand(alias.alias, done, ())
        left = [
            (c, n)
            for c in _own(self.node)
            if isinstance(c, exp.Column) and (n := _name(c)) in done and not self._keeps(c, done[n])
        ]
        for alias in named:
            if alias.parent is not self.node:  # `(i + 1 AS x) * 2`
                alias.replace(alias.this.copy())
        for column, name in left:
            self._put(column, name, done[name])

    def _expand(self, name: str, done: dict[str, exp.Expression], around: tuple[str, ...]) -> exp.Expression:
        """What an alias stands for, without aliases. around: those that are being read."""
        if name in done:
            return done[name]
        body = self.aliases[name]
        for column in [body] if isinstance(body, exp.Column) else [n for n in _own(body) if isinstance(n, exp.Column)]:
            inner = _name(column)
            if inner is None or inner == name or inner not in self.aliases:
                continue
            if inner in around:
                raise error(
                    "CYCLIC_ALIASES",
                    f'the aliases "{inner}" and "{name}" refer to each other',
                    sql=self.writing.text,
                    span=place_of(column),
                    hint=f"A relation in front names the column: relation.{inner}.",
                )
            found = self._put(column, inner, self._expand(inner, done, (*around, name)))
            if column is body:
                body = self.aliases[name] = found
        done[name] = body.copy()
        return done[name]

    def _put(self, column: exp.Column, name: str, value: exp.Expression) -> exp.Expression:
        if name in self.twice:
            raise error(
                "AMBIGUOUS_COLUMN",
                f'the alias "{name}" stands for two expressions',
                sql=self.writing.text,
                span=place_of(column),
                hint=f"If the column is meant, put its relation in front: relation.{name}.",
            )
        return self.writing.put(column, value)

    def _keeps(self, column: exp.Column, value: exp.Expression) -> bool:
        """True for a name that is read as it stands: in what has an alias (which is expanded), in SETTINGS, alone in
        ORDER BY, for a constant in GROUP BY.
        """
        above: exp.Expression | None = column.parent
        if isinstance(above, exp.Ordered) or (isinstance(above, exp.Group) and isinstance(value, exp.Literal)):
            return True
        while above is not None and above is not self.node:
            if _is_alias(above) or above.arg_key == "settings":
                return True
            above = above.parent
        return False


def _is_alias(node: exp.Expression) -> bool:
    return isinstance(node, exp.Alias) and not isinstance(node, ImpliedAlias)


def _own(node: exp.Expression) -> Iterator[exp.Expression]:
    """What stands in an expression or a SELECT, but not in the queries inside of it."""
    for found in node.walk(prune=lambda n: n is not node and isinstance(n, exp.Query)):
        if found is not node and not isinstance(found, exp.Query):
            yield found


def _name(column: exp.Column) -> str | None:
    """The name of a column without a relation in front."""
    return str(column.this.name) if isinstance(column.this, exp.Identifier) and not column.args.get("table") else None
