"""REFRESH MATERIALIZED VIEW, in all dialects: PostgreSQL and RisingWave, "REFRESH MATERIALIZED VIEW"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, span_of


@dataclass(frozen=True, kw_only=True)
class RefreshView(Statement):
    """`REFRESH MATERIALIZED VIEW [CONCURRENTLY] name [WITH DATA]`. name: None for ALL: those that were stopped."""

    name: Name | None


def read_refresh(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands behind REFRESH."""
    cursor.expect("MATERIALIZED", "VIEW")
    cursor.take("CONCURRENTLY")  # readers never wait
    name = None if cursor.take("ALL") else cursor.relation_name()
    if cursor.at("WITH", "NO", "DATA"):
        raise not_supported("WITH NO DATA", cursor.text, span_of(cursor.rest))
    cursor.take("WITH", "DATA")
    cursor.end()
    return RefreshView(**base, name=name)
