"""Databases whose changes are captured, and the tables that follow tables there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.tables import Table
from watersmeet.catalog.words import Words


@dataclass(frozen=True, slots=True)
class CapturedDatabase(Relation):
    """A database whose changes are read once, for any number of tables. It has no columns and no rows.

    connector: the options, with those that got a value of their own. start: the place from which changes are read
    (`connectors.databases.captures`). made: what was made there for it (slot, publication), and goes with it.
    of_table: the id of the only table, whose statement made it; then it is hidden.
    """

    words: ClassVar[Words] = Words("source", show=("sources",), show_create=("source",), drop=("source",))
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "captured database"
    can_alter: ClassVar[bool] = False

    connector: dict[str, str] = field(kw_only=True)
    start: str = field(kw_only=True)
    made: tuple[str, ...] = field(default=(), kw_only=True)
    of_table: str = field(default="", kw_only=True)

    @property
    def owner(self) -> str:
        """The id of the table whose statement made it; empty for one of its own."""
        return self.of_table


@dataclass(frozen=True, slots=True)
class Captured:
    """A table there. database: the id of the `CapturedDatabase`. oid: its number there; 0 where tables have none.
    types: by column, its type there, in words that are equal for equal types.

    has_snapshot: whether rows are taken that are there already. batch_rows: so many of them at a time. left_out:
    columns there that the table has not. added: columns that were added later, and the place in the server's log of the
    first transaction that is known to have them: rows of transactions before it may lack them. published: by which
    entries the server writes its changes; others if somebody removed them and added them again; empty: unknown. stops:
    a row with a value that has no equivalent stops the table, and is not set aside.
    """

    database: str
    schema: str
    table: str
    oid: int
    types: dict[str, str]
    has_snapshot: bool = True
    batch_rows: int = 0
    left_out: tuple[str, ...] = ()
    added: dict[str, str] = field(default_factory=dict)
    published: str = ""
    stops: bool = False


@dataclass(frozen=True, slots=True)
class CapturedTable(Table):
    """A table with the rows of a table outside, which its changes keep up to date."""

    words: ClassVar[Words] = Words("table", show=("tables",), show_create=("table", "stream"), drop=("table", "topic"))
    entry: ClassVar[str] = "captured table"
    can_alter_columns: ClassVar[bool] = False

    captured: Captured = field(kw_only=True)
