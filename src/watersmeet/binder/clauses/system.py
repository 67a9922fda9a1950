"""System relations as items of FROM, in queries that end: what Watersmeet knows of itself, as rows."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.algebra.bounded import SystemScan
from watersmeet.binder.context.binding import Environment, check_alias_list, scope_columns
from watersmeet.binder.context.rules import Binding, Sourced
from watersmeet.binder.context.scope import single
from watersmeet.connectors.base.deadletters import COLUMNS
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import error
from watersmeet.types import Schema

DEAD_LETTERS: Final = "watersmeet.dead_letters"

#: The columns of each system relation.
SYSTEM_RELATIONS: Final[dict[str, Schema]] = {DEAD_LETTERS: COLUMNS}
#: Names that other systems have for them. Timeplus, "Dead letter queue".
_OTHER_NAMES: Final = {"system.mat_view_dlq": DEAD_LETTERS}


def system_relation(node: exp.Table) -> str | None:
    """The name of the system relation that an item of FROM names, if no relation of the catalog has that name."""
    schema = node.args.get("db")
    if schema is None or not isinstance(node.this, exp.Identifier):
        return None
    name = f"{name_of(schema)}.{name_of(node.this)}".lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in SYSTEM_RELATIONS else None


def bind_system(
    name: str, alias: str | None, names: tuple[str, ...], node: exp.Table, env: Environment, binding: Binding
) -> Sourced:
    """The rows of a system relation. FEATURE_NOT_SUPPORTED in a query that does not end: nobody reports its changes.

    alias, names: of the item and of its columns, as they are written.
    """
    if not binding.rules.bounded:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"{name} in {binding.rules.query_called} is not supported",
            sql=env.text,
            span=place_of(node),
            detail="A system relation shows what is so now. It has no changes that could be followed.",
            hint="Read it in a SELECT that ends.",
        )
    binding.read_system(name)
    outputs = tuple(binding.new_column(c.name, c.type, c.nullable) for c in SYSTEM_RELATIONS[name])
    title = alias or name_of(node.this)
    check_alias_list(names, len(outputs), f'table "{title}"', env.text, place_of(node))
    return SystemScan(name, outputs), single(title, scope_columns(outputs, names))
