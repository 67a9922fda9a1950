"""What INSERT, UPDATE, DELETE and MERGE share: the names of what they write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.options import not_supported
from watersmeet.dialects.queries import is_folded, name_of, place_of
from watersmeet.dialects.statements import Name
from watersmeet.errors import Span, error

#: Clauses whose name in the tree is not what is written.
_CLAUSES: Final = {"conflict": "ON CONFLICT", "with_": "WITH", "limit": "LIMIT", "order": "ORDER BY"}


def allow(tree: exp.Expression, base: dict[str, Any], *allowed: str) -> None:
    """FEATURE_NOT_SUPPORTED for a clause that is not among these."""
    for name, value in tree.args.items():
        if value and name not in allowed:
            shown = _CLAUSES.get(name, name.strip("_").upper())
            place = place_of(value) if isinstance(value, exp.Expression) else place_of(tree)
            hint = "A row replaces the one with its key: leave the clause out." if name == "conflict" else None
            raise not_supported(f"{shown} in {type(tree).__name__.upper()}", base["text"], place, hint=hint)


def target_name(tree: exp.Expression | None, base: dict[str, Any]) -> tuple[Name, str | None]:
    """The table that a statement writes, and its alias. SYNTAX_ERROR, FEATURE_NOT_SUPPORTED."""
    text = base["text"]
    if not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier):
        raise error("SYNTAX_ERROR", "the name of a table was expected", sql=text, span=base["span"])
    allow(tree, base, "this", "alias", "db")
    alias, schema = tree.args.get("alias"), tree.args.get("db")
    name = plain_name(tree.this, place_of(tree.this) or base["span"], name_of(schema) if schema else None)
    return name, name_of(alias.this) if alias else None


def plain_name(identifier: exp.Expression, span: Span, schema: str | None = None) -> Name:
    """The name that an identifier is."""
    return Name(name_of(identifier), span, is_folded(identifier), schema)


def column_name(tree: exp.Expression, span: Span) -> Name:
    """A column, or a field of one: `address.city`."""
    if not isinstance(tree, exp.Dot):
        return plain_name(tree, span)
    first, *others = tree.flatten()
    return replace(plain_name(first, span), path=tuple(name_of(p) for p in others))
