"""CREATE DICTIONARY, as it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog import DictionaryTable, Relation
from watersmeet.dialects.statements import Clause, CreateRelation, Name


@dataclass(frozen=True, kw_only=True)
class CreateDictionary(CreateRelation):
    """`CREATE DICTIONARY name (columns) PRIMARY KEY … SOURCE(source) LAYOUT(layout) [LIFETIME(…)]`.

    lifetime_s: its least and its greatest value; 0 and 0 is for ever, None if it is not given. bounds: the columns of
    `RANGE(MIN first MAX last)`, between which a row is valid; none without it.
    """

    makes: ClassVar[type[Relation]] = DictionaryTable

    source: Clause
    layout: Clause
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lifetime_s: tuple[int, int] | None = None
    bounds: tuple[Name, ...] = ()
