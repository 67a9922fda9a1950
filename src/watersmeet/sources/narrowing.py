"""What a query needs of a table outside of the database, so that its server can leave out the rest."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from watersmeet.types import Field, Schema

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "IN", "IS NULL", "IS NOT NULL"]
Constant = int | Decimal | str | dt.date | dt.datetime


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with `values`: one, any number for IN, none for IS [NOT] NULL.

    Values are of the type of the column: whole or decimal numbers, texts, dates, or times without a zone.
    """

    column: Field
    operator: Operator
    values: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Narrowed:
    """A relation outside that a query names once. columns: those that it needs, at least one. Rows that do not meet all
    `conditions` change nothing for it.
    """

    relation_id: str
    columns: Schema
    conditions: tuple[Condition, ...]
