"""The contract of readers, which fetch the content of external tables and dictionaries, and the conditions that queries
push down to them.
"""

from __future__ import annotations

import abc
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal

import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.values.types import Field, Schema

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


class Reader(abc.ABC):
    """The content of one external table.

    narrows: whether it spares work to read few columns, or rows under conditions.
    """

    narrows: ClassVar[bool] = False

    @abc.abstractmethod
    def columns(self) -> Schema | None:
        """Its columns; None if they have to be declared."""

    @abc.abstractmethod
    def version(self) -> Any:
        """Something that is equal as long as the content surely is the same. Cheap."""

    @abc.abstractmethod
    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        """All rows, with `columns` by name in their Arrow types. Rows that do not meet all conditions may be left out.

        Raises an error that says what is wrong with the content.
        """

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:
        """What is asked outside where `read` is called with these, for EXPLAIN. Of readers that narrow."""
        raise NotImplementedError

    def written(self) -> dict[str, str]:
        """The options of the connector of sinks that writes there; empty where nothing is written."""
        return {}

    def written_format(self) -> MessageFormat | None:
        """How rows are encoded that are written there; None where its columns say it."""
        return None
