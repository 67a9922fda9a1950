"""The contract of readers: what brings the content of external tables and dictionaries from outside of the database."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from watersmeet.catalog import MessageFormat
from watersmeet.sources.narrowing import Condition
from watersmeet.types import Schema


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
