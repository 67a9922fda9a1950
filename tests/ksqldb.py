"""A fifth dialect, as a project beside Watersmeet adds one: a grammar, rules, and one line that registers them.

Of ksqlDB it has what its queries add to SQL: push queries (`SELECT … EMIT CHANGES`), which give what comes after their
start until they are stopped; pull queries (without it), which read what is stored, and join nothing; `WITHIN` of joins
of streams, by their event times. ksqlDB, "SELECT (Push Query)", "SELECT (Pull Query)", "Joining collections".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.binder.context.rules import DialectRules, JoinClause, Reading, Sourced
from watersmeet.binder.dialects import register
from watersmeet.dialects.registry import Language
from watersmeet.dialects.risingwave.grammar import WatersmeetRisingWave
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.nodes import MarkedSelect, plain, retyped
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import error


class WithinJoin(exp.Join):
    """`JOIN … WITHIN 1 HOUR ON …`."""

    arg_types: ClassVar = {**exp.Join.arg_types, "within": True}
    own_parts: ClassVar = frozenset({"within"})


class Ksqldb(WatersmeetRisingWave):
    class Parser(WatersmeetRisingWave.Parser):
        def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expression | None]:
            pushed = [t.text.upper() for t in raw_tokens[-2:]] == ["EMIT", "CHANGES"]
            trees = super().parse(raw_tokens[:-2] if pushed else raw_tokens, sql)
            if not pushed:
                return trees
            if not isinstance(trees[0], exp.Select):
                self.raise_error("EMIT CHANGES ends a SELECT", raw_tokens[-2])
            return [retyped(trees[0], MarkedSelect)]

        def _parse_table_alias(self, *args: Any, **kwargs: Any) -> Any:
            at_within = self._curr is not None and self._curr.text.upper() == "WITHIN"
            return None if at_within else super()._parse_table_alias(*args, **kwargs)

        def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
            join = super()._parse_join(*args, **kwargs)
            if join is None or not self._match_text_seq("WITHIN"):
                return join
            number, unit = self._parse_number(), self._parse_var(any_token=True)
            if number is None or unit is None or not self._match(TokenType.ON):
                self.raise_error("WITHIN is followed by a duration and ON")
            join.set("on", self._parse_disjunction())
            length = exp.cast(exp.Literal.string(f"{number.name} {unit.name}"), exp.DType.INTERVAL)
            return retyped(join, WithinJoin, within=length)


class KsqldbRules(DialectRules):
    def reading(self, query: exp.Expression) -> Reading:
        return Reading("new of streams" if isinstance(query, MarkedSelect) else "all")

    def check_ending(self, node: exp.Expression, text: str) -> None:
        if isinstance(node, exp.Join):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "Pull queries don't support JOIN clauses",
                sql=text,
                span=node_span(node.this),
                hint="Write EMIT CHANGES, or make a view of the join.",
            )

    def join(self, clause: JoinClause, plain_join: Callable[[JoinClause], Sourced]) -> Sourced:
        times = [_time(side) for side in (clause.left, clause.right)]
        if isinstance(clause.node, WithinJoin) and all(times):
            made, length = plain(clause.node.copy()), clause.node.args["within"]
            one, other = times
            early = exp.GTE(this=one, expression=exp.Sub(this=other, expression=length.copy()))
            late = exp.LTE(this=one.copy(), expression=exp.Add(this=other.copy(), expression=length.copy()))
            made.set("on", exp.and_(exp.paren(made.args["on"]), early, late, copy=False))
            return plain_join(replace(clause, node=made))
        if all(times) or isinstance(clause.node, WithinJoin):
            raise error(
                "JOIN_KIND",
                "two streams, and only these, are joined WITHIN a time",
                sql=clause.env.text,
                span=node_span(clause.node.this),
            )
        return plain_join(clause)


def _time(side: Sourced) -> exp.Column | None:
    """The event time of a stream; None for a table."""
    table = side[1].tables[-1]
    found = [c for c in table.columns if c.name == "rowtime"]
    return exp.column("rowtime", exp.to_identifier(table.alias, quoted=True), quoted=True) if found else None


def add() -> None:
    """Lets this process speak it."""
    register(Language("ksqldb", Ksqldb, Semantics()), KsqldbRules)
