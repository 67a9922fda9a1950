"""Joins of dialects in which the kinds of the two sides say what a join does (Timeplus).

Document 003, "JOIN Category"; notes on Proton, 1.1 and 1.6. Bidirectional where both sides only grow, or both change; a side that
only grows looks up one that changes or stands still: later changes there give nothing. What else there is, is refused.
"""

from __future__ import annotations

from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.relations import (
    Cut,
    Filter,
    Join,
    Project,
    Relation,
    Scan,
    TemporalJoin,
    Union,
    Unnest,
    Values,
)
from watersmeet.dialects.binder.shared import Binding, Environment
from watersmeet.dialects.queries import place_of
from watersmeet.dialects.semantics import Semantics
from watersmeet.errors import Error, error

#: What a side of a join is: rows only come; rows come and go; its content stands still.
Nature = Literal["append", "changelog", "static"]

_MODES: Final = {"append": "Append", "mutable": "Mutable", "versioned_kv": "VersionedKV", "changelog_kv": "ChangelogKV"}


def check_kind(node: exp.Join, semantics: Semantics, text: str) -> None:
    """JOIN_KIND for a kind of join that the dialect does not have (TP-05)."""
    kind = "CROSS" if node.meta.get("comma") else node.side.upper() or node.kind.upper() or "INNER"
    if kind in semantics.refused_joins:
        raise error("JOIN_KIND", f"{kind} JOIN is not supported", sql=text, span=place_of(node.this),
                    detail="Stream join only supports inner/left join." if kind != "FULL" else None,
                    hint="Exchange the sides and write LEFT JOIN." if kind == "RIGHT" else "Write JOIN … ON with a condition.")


def check_strictness(node: exp.Join, semantics: Semantics, text: str) -> None:
    """FEATURE_NOT_SUPPORTED for what is there only in other dialects' sense."""
    method = node.method.upper()
    if method == "LATEST" or (method == "ASOF" and semantics.asof == "on arrival"):
        raise error("FEATURE_NOT_SUPPORTED", f"{method} JOIN is not supported yet", sql=text, span=place_of(node.this))


def nature(node: Relation) -> Nature:
    """What a relation is as the side of a join."""
    if isinstance(node, Cut):
        return "static" if node.keeps == "before" else nature(node.input)
    if isinstance(node, Scan):
        return "append" if node.append_only else "changelog"
    if isinstance(node, Values):
        return "static"
    if isinstance(node, TemporalJoin):
        return nature(node.left)
    natures = {nature(i) for i in node.inputs}
    if natures == {"static"}:
        return "static"
    grows = isinstance(node, (Filter, Project, Union, Unnest)) or (isinstance(node, Join) and node.kind == "inner")
    return "append" if grows and "changelog" not in natures else "changelog"


def strict_join(joined: Relation, node: exp.Join, env: Environment, binding: Binding) -> Relation:
    """The regular join `joined` as what the natures of its sides make of it. FEATURE_NOT_SUPPORTED where they make nothing."""
    if not isinstance(joined, Join):
        return joined
    sides = nature(joined.left), nature(joined.right)
    if sides in (("append", "changelog"), ("append", "static")):
        if joined.kind not in ("inner", "left"):
            raise _unsupported(joined, node, env, binding)
        kind: Literal["inner", "left"] = "left" if joined.kind == "left" else "inner"
        return TemporalJoin(joined.left, joined.right, kind, joined.keys, joined.residual, None, span=joined.span)
    if sides in (("append", "append"), ("changelog", "changelog"), ("static", "static")):
        return joined
    if sides == ("changelog", "static") and joined.kind in ("inner", "left"):
        return joined
    raise _unsupported(joined, node, env, binding)


def _unsupported(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> Error:
    """Proton's refusal."""
    left, right = (_shown(side, binding) for side in (joined.left, joined.right))
    return error("JOIN_KIND", f"'{left}' {joined.kind.upper()} {node.method.upper() or 'ALL'} JOIN '{right}' is not supported",
                 sql=env.text, span=place_of(node.this),
                 hint="An append stream can stand left of all others; on its right only another append stream meets it in both directions.")


def _shown(node: Relation, binding: Binding) -> str:
    if isinstance(node, Cut) and node.keeps == "before":
        return "Static table"
    if isinstance(node, (Cut, Filter, Project)):
        return _shown(node.input, binding)
    mode = binding.catalog.relations[node.relation_id].mode if isinstance(node, Scan) else None
    return f"{_MODES[mode]} stream" if mode is not None else {"append": "Append stream", "static": "Static table"}.get(nature(node), "Changelog stream")
