"""Binds elements of arrays in FROM (LATERAL), the whole value of a record, and select lists that build objects.

Lenses SQL, "Lateral joins", "Projections", "Facets"; LS-59 to LS-62.

**LATERAL** outputs each record once for each element of an array, which has a separate name; a record whose array is
empty or NULL is omitted. Several LATERAL clauses may follow each other, and each can read the earlier names.

**Targets.** `AS a.b` is a field of the object `a`, which consists of all items with the same prefix in order. `AS
_key.a` is a field of the key. `AS _value` is the whole value: an object, or a single value without a name, whose type
determines the format of the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Unnest
from watersmeet.binder.context.binding import Environment, Item, value_of
from watersmeet.binder.context.rules import Binding, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.binder.dialects.lenses.records import HIDDEN, packed
from watersmeet.catalog import RECORD_TIME, TOMBSTONE, VALUE_COLUMN
from watersmeet.dialects.lenses.grammar import PathAlias
from watersmeet.errors import Error
from watersmeet.expressions.context import Context, Value, call, of_scalar
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import SqlType

#: The format of a topic by the type of its single values.
_FORMATS: Final = {"integer": "INT", "bigint": "LONG", "varchar": "STRING", "bytea": "BYTES"}

#: The name of the only field of a topic with single values.
_ONLY: Final = "value"


def exploded(sourced: Sourced, elements: Sequence[exp.Alias], env: Environment, binding: Binding) -> Sourced:
    """The records with the elements of LATERAL. Raises DATATYPE_MISMATCH unless it reads an array."""
    tree, scope = sourced
    for item in elements:
        array = bind_value(item.this, ScopeContext(env.text, scope, "LATERAL"))
        kind = array.type.element
        if kind is None:
            raise env.error(
                "DATATYPE_MISMATCH",
                f"LATERAL takes an array, not {array.type.sql}",
                item.this,
                hint="Write the field with the array, as LATERAL items AS item.",
            )
        element = binding.new_column(item.alias, kind, nullable=True)
        tree = Unnest(tree, (array.finish(),), (element,))
        others = tuple(c for c in scope.visible if c.name != item.alias)
        scope = replace(scope, visible=(*others, ScopeColumn(item.alias, value_of(element))))
    return tree, scope


def with_value(scope: Scope, value_format: str | None) -> Scope:
    """The scope of a topic with its whole value as the column `_value`.

    The value is an object of all fields, or the only field of a format without names; NULL for a tombstone and for a
    missing partner of an outer join.
    """
    fields = [(c.name, c.value) for c in scope.visible if c.name not in HIDDEN]
    if not fields:
        return scope
    alone = len(fields) == 1 and value_format in _FORMATS.values()
    whole = fields[0][1].finish() if alone else packed(fields, always=True)
    by_name = {c.name: c.value.expression for c in scope.visible}
    absent = by_name.get(TOMBSTONE) or exp.Is(this=by_name[RECORD_TIME].copy(), expression=exp.null())
    made = exp.Case(ifs=[exp.If(this=absent.copy(), true=exp.null())], default=whole.expression)
    column = ScopeColumn(VALUE_COLUMN, Value(exp.Paren(this=made), whole.type))
    tables = tuple(replace(t, hidden=(*t.hidden, column)) for t in scope.tables)
    return replace(scope, tables=tables, visible=(*scope.visible, column))


@dataclass(frozen=True)
class Shaped:
    """A select list whose items are the fields of records. value_format: the format of a value that is not an
    object.
    """

    items: list[Item]
    value_format: str | None = None


@dataclass
class _Object:
    """An object that several items build. fields: its fields by name. node: its first item."""

    node: exp.Expression
    fields: dict[str, Value | _Object] = field(default_factory=dict)

    def add(self, path: Sequence[str], value: Value, node: exp.Expression, ctx: Context) -> None:
        """Adds a field at a path. Raises DUPLICATE_COLUMN if it exists."""
        first, rest = path[0], path[1:]
        there = self.fields.get(first)
        if there is None:
            there = self.fields[first] = _Object(node) if rest else value
        elif not rest or not isinstance(there, _Object):
            raise _twice(first, node, ctx)
        if rest and isinstance(there, _Object):
            there.add(rest, value, node, ctx)

    def value(self) -> Value:
        """The object."""
        fields = [(n, v.value() if isinstance(v, _Object) else v) for n, v in self.fields.items()]
        return of_scalar(packed(fields, always=True))


def shaped(items: Sequence[Item], ctx: Context) -> Shaped:
    """The fields of the records of a select list, with objects for items `AS a.b`, and the fields of `AS _value`.

    Raises DUPLICATE_COLUMN for a field that is named both as a whole and by a part.
    """
    objects: dict[str | None, _Object] = {}
    made: list[tuple[Value | _Object, str | None, exp.Expression]] = []
    value_format: str | None = None
    for value, name, node in items:
        path = node.path if isinstance(node, PathAlias) else ()
        if path:
            known = objects.get(name)
            if known is None:
                known = objects[name] = _Object(node)
                made.append((known, name, node))
            known.add(path, value, node, ctx)
        elif name == VALUE_COLUMN and isinstance(node, exp.Alias):
            if value.type.name == "struct":
                made += [(_part(value, n, t), n, node) for n, t in value.type.fields]
                continue
            value_format = _format(value.type, node, items, ctx)
            made.append((value, _ONLY, node))
        else:
            made.append((value, name, node))
    whole = [name for _, name, node in made if name in objects and not (isinstance(node, PathAlias) and node.path)]
    if whole:
        raise _twice(str(whole[0]), objects[whole[0]].node, ctx)
    return Shaped([(v.value() if isinstance(v, _Object) else v, n, node) for v, n, node in made], value_format)


def _part(value: Value, name: str, kind: SqlType) -> Value:
    return Value(call("struct_extract", value.finish().expression, exp.Literal.string(name)), kind)


def _format(kind: SqlType, node: exp.Expression, items: Sequence[Item], ctx: Context) -> str:
    """The format of values of one type. Raises FEATURE_NOT_SUPPORTED for other types, and if there are other fields."""
    others = [n for _, name, n in items if n is not node and name != VALUE_COLUMN and not (name or "").startswith("_")]
    if kind.name not in _FORMATS or others:
        raise ctx.not_supported(
            f"AS _value of {kind.sql}" if not others else "AS _value beside other fields",
            node,
            hint="Give the value a name: expression AS field.",
        )
    return _FORMATS[kind.name]


def _twice(name: str, node: exp.Expression, ctx: Context) -> Error:
    return ctx.error("DUPLICATE_COLUMN", f'field "{name}" specified more than once', node)
