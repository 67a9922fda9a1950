"""Nodes that grammars make where a dialect says more than SQL: subclasses of sqlglot's, with typed parts.

The binder reads them like the nodes that they extend; what they add is read by the rules of their dialect alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

from sqlglot import exp

from watersmeet.values.places import own_place, set_place

#: The part that only a NULL in the place of a parameter has.
_INFER: Final = "infer"
Kind = TypeVar("Kind", bound=exp.Expression)


class MarkedSelect(exp.Select):  # type: ignore[misc]
    """A SELECT that says that it runs until it is stopped."""

    #: The parts that it has and a SELECT has not.
    own_parts: ClassVar[frozenset[str]] = frozenset()


class MarkedTable(exp.Table):  # type: ignore[misc]
    """A relation in FROM of which a dialect may say more."""

    own_parts: ClassVar[frozenset[str]] = frozenset()
    #: Those of them that a query which ends may have.
    stored_parts: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_stored(self) -> bool:
        """Whether only what is stored of it is read, so that a query over it ends."""
        return False


class CommaJoin(exp.Join):  # type: ignore[misc]
    """A join that is written as a comma."""


class FirstName(exp.Identifier):  # type: ignore[misc]
    """The name of a column that means the first one where several relations have one, instead of being ambiguous."""


class FoldedName(exp.Identifier):  # type: ignore[misc]
    """A name that was written without quotes and folded by the grammar: case does not tell it from others."""


class ColumnPath(exp.Column):  # type: ignore[misc]
    """`a.b.c` in a grammar that writes fields of fields so: `a` is a source, or a column with fields.

    title: what an item of a select list is called that is this column, if not by the column's name.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Column.arg_types, "title": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"title"})


class ImpliedAlias(exp.Alias):  # type: ignore[misc]
    """An item of a select list without AS, under the name that its grammar gives it."""


class PastCommit(exp.Expression, exp.Condition):  # type: ignore[misc]
    """`COMMIT number` behind FOR SYSTEM_TIME AS OF."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True}


def open_parameter(infer: Callable[..., None]) -> exp.Expression:
    """A parameter of a statement that is bound before it gets a value: a NULL of the type that its place has.

    infer: gets this type, once for each place that gives it one.
    """
    return exp.Null(**{_INFER: infer})


def infer_open(node: Any, *found: Any) -> None:
    """Tells an open parameter what was found of its type; other nodes are left alone."""
    if isinstance(node, exp.Null) and _INFER in node.args:
        node.args[_INFER](*found)


def is_open(node: exp.Expression) -> bool:
    """Whether the value of an expression follows from an open parameter."""
    return any(_INFER in n.args for n in node.find_all(exp.Null))


class Adapted(exp.Expression, exp.Condition):  # type: ignore[misc]
    """`this` in place of what was written: `text`. Its value is that of `this`."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "text": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"text"})


def adapt(node: exp.Expression, text: str) -> None:
    """Notes that a node stands in place of what was written: `text`."""
    made = Adapted(text=text)
    node.replace(made)
    made.set("this", node)


def name_item(node: exp.Expression, name: str) -> None:
    """Gives a node a name if it is an item of a select list."""
    if isinstance(node.parent, exp.Select) and node.arg_key == "expressions":
        made = ImpliedAlias(alias=exp.to_identifier(name, quoted=True))
        node.replace(made)
        made.set("this", node)


class KnownTable(exp.Table):  # type: ignore[misc]
    """A relation in FROM by its id, as one that is hidden has no name."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "relation_id": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"relation_id"})


def own_parts(node: exp.Expression) -> frozenset[str]:
    """The names of the parts of a node that the rules of its dialect read."""
    found: frozenset[str] = getattr(node, "own_parts", frozenset())
    return found


def retyped(node: exp.Expression, kind: type[Kind], **parts: Any) -> Kind:
    """The node as one of `kind`, with further parts, in the place of `node`."""
    made: Kind = kind(**{**node.args, **parts})
    set_place(made, own_place(node))
    node.replace(made)
    return made


def wrap(node: exp.Expression, make: Callable[[exp.Expression], exp.Expression]) -> None:
    """Replaces the node by the result of `make`, which contains the node itself.

    Not a copy of it: a walk over the tree that calls this still has to reach the parts of the node.
    """
    place = exp.Placeholder()
    node.replace(place)
    place.replace(make(node))


def plain(node: exp.Expression) -> exp.Expression:
    """The node as sqlglot knows it, without the parts that a dialect adds."""
    kind = kind_of(node)
    if kind is type(node):
        return node
    added = own_parts(node)
    made: exp.Expression = kind(**{n: part for n, part in node.args.items() if n not in added})
    set_place(made, own_place(node))
    return made


@cache
def _known(own: Any) -> type[exp.Expression]:
    found: type[exp.Expression] = next(k for k in own.__mro__ if k.__module__.startswith("sqlglot."))
    return found


def kind_of(node: exp.Expression) -> type[exp.Expression]:
    """The class of sqlglot's that the node is of, or extends."""
    own: Any = type(node)
    return _known(own)


def _plain_tree(node: exp.Expression) -> exp.Expression:
    tree: exp.Expression = node.copy()
    for part in reversed(list(tree.walk())):  # what stands inside first
        if isinstance(part, Adapted):
            made: exp.Expression = exp.Var(this=part.args["text"])
        elif isinstance(part, ImpliedAlias):
            made = part.this
        else:
            made = plain(part)
        if part is tree:
            tree = made
        elif made is not part:
            part.replace(made)
    return tree


def sql_of(node: exp.Expression, dialect: str | None = None) -> str:
    """The node as SQL, for messages: without what only its grammar says."""
    tree = _plain_tree(node)
    if dialect is not None:
        for bracket in tree.find_all(exp.Bracket):
            bracket.set("offset", 1)  # subscripts are as they were written
    return str(tree.sql(dialect=dialect))


def text_of(node: exp.Expression) -> str:
    """An expression as it is written out, names without quotes."""
    tree = _plain_tree(node)
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("quoted", False)
    return str(tree.sql(normalize_functions=False))
