"""Nodes that grammars make where a dialect says more than SQL: subclasses of sqlglot's, with typed parts.

The binder reads them like the nodes that they extend; what they add is read by the rules of their dialect alone.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from sqlglot import exp

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


def own_parts(node: exp.Expression) -> frozenset[str]:
    """The names of the parts of a node that the rules of its dialect read."""
    found: frozenset[str] = getattr(node, "own_parts", frozenset())
    return found


def retyped(node: exp.Expression, kind: type[Kind], **parts: Any) -> Kind:
    """The node as one of `kind`, with further parts, in the place of `node`."""
    made: Kind = kind(**{**node.args, **parts})
    made.meta.update(node.meta)
    node.replace(made)
    return made


def plain(node: exp.Expression) -> exp.Expression:
    """The node as sqlglot knows it, without the parts that a dialect adds."""
    kind = next(k for k in type(node).__mro__ if k.__module__.startswith("sqlglot."))
    if kind is type(node):
        return node
    added = own_parts(node)
    made: exp.Expression = kind(**{n: part for n, part in node.args.items() if n not in added})
    made.meta.update(node.meta)
    return made
