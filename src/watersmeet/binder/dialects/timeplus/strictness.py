"""Joins in dialects where the kinds of the two sides decide what a join does (Timeplus).

Timeplus, "Multi-JOINs and ASOF JOINs", "JOIN Category"; Proton. A join is bidirectional if both sides only grow, or
both change. A side that only grows looks up one that changes or never changes; later changes of that side have no
effect. Every other combination is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from sqlglot import exp

from watersmeet.algebra.nodes import (
    AsofJoin,
    Cut,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    TemporalJoin,
)
from watersmeet.algebra.scalars import Scalar, conjuncts, disjuncts
from watersmeet.binder.clauses.arrival import newest, without_late_rows
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.emissions import change_kind
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.dialects.timeplus.dictionaries import by_key, check_key, dictionary_of, look_up
from watersmeet.binder.dialects.timeplus.type_defaults import without_restored_nulls
from watersmeet.catalog import Index
from watersmeet.dialects.timeplus.nodes import RangeJoin
from watersmeet.dialects.tree.nodes import CommaJoin
from watersmeet.dialects.tree.queries import place_of
from watersmeet.errors import Error, error

#: How many of the newest rows of a key an ASOF join keeps.
_KEEP_VERSIONS: Final = 3

_MODES: Final = {
    "append": "Append",
    "changelog": "Changelog",
    "mutable": "Mutable",
    "versioned_kv": "VersionedKV",
    "changelog_kv": "ChangelogKV",
}


def check_kind(node: exp.Join, text: str) -> None:
    """JOIN_KIND for a kind of join that the dialect lacks (TP-05)."""
    kind = "CROSS" if isinstance(node, CommaJoin) else node.side.upper() or node.kind.upper() or "INNER"
    if kind in ("RIGHT", "CROSS"):
        raise error(
            "JOIN_KIND",
            f"{kind} JOIN is not supported",
            sql=text,
            span=place_of(node.this),
            detail="Stream join only supports inner/left join." if kind != "FULL" else None,
            hint="Exchange the sides and write LEFT JOIN." if kind == "RIGHT" else "Write JOIN … ON with a condition.",
        )


def strict_join(joined: Node, node: exp.Join, env: Environment, binding: Binding) -> Node:
    """The meaning of the regular or ASOF join `joined`, by its strictness and the kinds of its sides.

    JOIN_KIND if it has none; DIRECT_KEY, DIRECT_RIGHT_SIDE, JOIN_WITHOUT_EQUALITY.
    """
    if isinstance(joined, AsofJoin):
        return _asof(joined, node, env, binding)
    if not isinstance(joined, Join):
        return joined
    sides = change_kind(joined.left), change_kind(joined.right)
    if isinstance(node, RangeJoin) and (
        joined.kind not in ("inner", "left") or len(set(sides)) > 1 or "changelog" in sides
    ):
        raise env.error(
            "JOIN_KIND",
            "Only inner/left range join is supported and the left and right stream must be append-only streams "
            "in range join",
            node.this,
            hint="Compare the times themselves: ON a.k = b.k AND a.t >= b.t - 2m AND a.t <= b.t + 2m.",
        )
    if not joined.keys and joined.residual is not None:
        _check_disjunctions(joined.residual, node, env)
    if node.method.upper() == "LATEST":
        return _latest(joined, node, env, binding)
    direct = binding.settings.get("join_algorithm") == "direct"
    dictionary = dictionary_of(node, env, binding)
    if dictionary is not None and dictionary.dictionary is not None and dictionary.dictionary.by_address:
        raise env.not_supported(
            "a join with a dictionary of layout IP_TRIE", node.this, hint="dict_get looks up addresses."
        )
    if dictionary is not None and (direct or sides == ("append", "changelog")):
        keyed = check_key(joined, dictionary, node, env) if direct else by_key(joined, dictionary)
        if keyed is not None:
            return look_up(keyed, dictionary, _looked_up(joined, node, env, binding).kind, binding)
    if direct:
        _check_direct(joined, node, env, binding)
        return _looked_up(joined, node, env, binding)
    if sides in (("append", "changelog"), ("append", "static")):
        return _looked_up(joined, node, env, binding)
    if sides == ("append", "append") and not isinstance(node, RangeJoin):
        binding.notice(
            "A join of two append streams keeps all rows of both: it is for exploration. Add a range such as "
            "date_diff_within(2m), "
            "or join with a mutable stream."
        )
    if sides == ("append", "append") and isinstance(node, RangeJoin):
        return without_late_rows(joined, binding)
    if (
        sides == ("changelog", "changelog")
        and joined.kind == "left"
        and binding.settings.get("join_restore_nulls") == "0"
    ):
        return without_restored_nulls(joined, binding)
    if sides in (("append", "append"), ("changelog", "changelog"), ("static", "static")):
        return joined
    if sides == ("changelog", "static") and joined.kind in ("inner", "left"):
        return joined
    raise _unsupported(joined, node, env, binding)


def _check_disjunctions(condition: Scalar, node: exp.Join, env: Environment) -> None:
    """Proton's refusal of an OR whose alternatives have no equality in common."""
    for part in conjuncts(condition):
        branches = [{s.expression.sql() for s in conjuncts(b)} for b in disjuncts(part)]
        if len(branches) > 1 and not set.intersection(*branches):
            raise error(
                "JOIN_WITHOUT_EQUALITY",
                "Stream to Stream join only supports only one disjunct join clause",
                sql=env.text,
                span=place_of(node.args["on"]),
                hint="Make a view of each alternative, and UNION them.",
                code=48,
            )


def _looked_up(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> TemporalJoin:
    """Left rows drive the join: each matches the right side as it is when the row arrives."""
    if joined.kind not in ("inner", "left") or change_kind(joined.left) == "static":
        raise _unsupported(joined, node, env, binding)
    kind: Literal["inner", "left"] = "left" if joined.kind == "left" else "inner"
    return TemporalJoin(joined.left, joined.right, kind, joined.keys, joined.residual, None, span=joined.span)


def _latest(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> TemporalJoin:
    """LATEST: for each join key, the right row that arrived last (TP-08, TP-57 to TP-59)."""
    _check_appended(joined, node, env, binding)
    place = place_of(node.this)
    if not joined.keys:
        raise error(
            "JOIN_WITHOUT_EQUALITY", "LATEST join needs at least one equal-join column", sql=env.text, span=place
        )
    if joined.residual is not None:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "Streaming join doesn't support predicates in JOIN ON clause. Use WHERE predicate instead",
            detail="A LATEST JOIN compares with = only.",
            sql=env.text,
            span=place,
            hint="In WHERE, it filters the row that arrived last.",
        )
    found = newest(joined.right, [k.right for k in joined.keys], binding)
    if found is None:
        raise _unsupported(joined, node, env, binding)
    return _looked_up(replace(joined, right=found[0]), node, env, binding)


def _asof(joined: AsofJoin, node: exp.Join, env: Environment, binding: Binding) -> AsofJoin:
    """ASOF: the nearest of the newest versions of the key, when the left row arrives (TP-07, TP-55, TP-56)."""
    _check_appended(joined, node, env, binding)
    kind = joined.right_value.type
    if not kind.is_numeric and kind.name not in ("date", "timestamp", "timestamptz"):
        raise error(
            "DATATYPE_MISMATCH",
            f"ASOF join not supported for type: {'string' if kind.name == 'varchar' else kind.sql}",
            sql=env.text,
            span=place_of(node.this),
            hint="Compare numbers, dates or times.",
            code=169,
        )
    versions = int(binding.settings.get("keep_versions", _KEEP_VERSIONS))
    found = newest(joined.right, [k.right for k in joined.keys], binding, limit=versions, value=joined.right_value)
    if found is None:
        raise _unsupported(joined, node, env, binding)
    right, age = found
    return replace(joined, right=right, ties=tuple(c.id for c in age), arrival=True)


def _check_appended(joined: Join | AsofJoin, node: exp.Join, env: Environment, binding: Binding) -> None:
    """Proton's refusal of sides that delete rows, except keyed streams on the right, of which every version counts."""
    kind = f"{joined.kind} {node.method.lower()}"
    for side, shown in ((joined.left, "left"), (joined.right, "right")):
        kept = isinstance(side, Scan) and binding.catalog.relations[side.relation_id].mode in (
            "mutable",
            "versioned_kv",
        )
        if change_kind(side) == "changelog" and not (shown == "right" and kept):
            raise env.error(
                "JOIN_KIND",
                f"The {shown} data stream semantic of {kind} JOIN is expected to be 'Append', but got 'Changelog'",
                node.this,
            )
    if (
        joined.kind not in ("inner", "left")
        or change_kind(joined.left) == "static"
        or change_kind(joined.right) == "static"
    ):
        raise _unsupported(joined, node, env, binding)


def _check_direct(joined: Join, node: exp.Join, env: Environment, binding: Binding) -> None:
    """A direct join looks up rows of a mutable stream by a prefix of its primary key or of an index (TP-50 to
    TP-54).
    """
    place = place_of(node.this)
    right = joined.right
    relation = binding.catalog.relations[right.relation_id] if isinstance(right, Scan) else None
    if relation is None or relation.mode != "mutable":
        raise error(
            "DIRECT_RIGHT_SIDE",
            f"'{_shown(right, binding)}' can't be looked up by a direct join",
            sql=env.text,
            span=place,
            hint="A mutable stream or a dictionary can.",
        )
    assert isinstance(right, Scan)
    names = {c.id: n for c, n in zip(right.outputs, right.source_names, strict=True)}
    covered = {names[c] for k in joined.keys if (c := _column(k.right)) in names}
    keys = [
        relation.primary_key,
        *(
            r.index_columns
            for r in binding.catalog.relations.values()
            if isinstance(r, Index) and r.depends_on == (relation.id,)
        ),
    ]
    if not any(key and key[0] in covered for key in keys):
        raise error(
            "DIRECT_KEY",
            f'the condition has no key by which "{relation.name}" can be looked up',
            sql=env.text,
            span=place,
            detail="Its keys are " + ", ".join("(" + ", ".join(k) + ")" for k in keys if k) + ".",
            hint="Compare the first column of its primary key or of an index, or leave join_algorithm out.",
        )


def _column(scalar: Scalar) -> str | None:
    """The column that a key reads, without casts."""
    node = scalar.expression.unnest()
    while isinstance(node, exp.Cast):
        node = node.this.unnest()
    return node.name if isinstance(node, exp.Column) else None


def _unsupported(joined: Join | AsofJoin, node: exp.Join, env: Environment, binding: Binding) -> Error:
    """Proton's refusal."""
    left, right = (_shown(side, binding) for side in (joined.left, joined.right))
    return env.error(
        "JOIN_KIND",
        f"'{left}' {joined.kind.upper()} {node.method.upper() or 'ALL'} JOIN '{right}' is not supported",
        node.this,
        hint="An append stream can stand left of all others; on its right only another append stream meets it in "
        "both directions.",
    )


def _shown(node: Node, binding: Binding) -> str:
    if isinstance(node, Cut) and node.keeps == "before":
        return "Static table"
    if isinstance(node, (Cut, Filter, Project)):
        return _shown(node.input, binding)
    mode = binding.catalog.relations[node.relation_id].mode if isinstance(node, Scan) else None
    return (
        f"{_MODES[mode]} stream"
        if mode is not None
        else {"append": "Append stream", "static": "Static table"}.get(change_kind(node), "Changelog stream")
    )
