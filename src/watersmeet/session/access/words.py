"""Which relations a word of SQL stands for: in SHOW, SHOW CREATE, DROP and ALTER."""

from __future__ import annotations

from typing import Final, Literal

from watersmeet.catalog import (
    DictionaryTable,
    DictionaryView,
    ExternalTable,
    ExternalView,
    Index,
    MaterializedView,
    Processor,
    Pump,
    Relation,
    Source,
    StoppedPump,
    Stream,
    Table,
    TopicTable,
    View,
)
from watersmeet.dialects.semantics import Semantics

#: Where the word stands: `SHOW words`, `SHOW CREATE word`, `DROP word` (and ALTER).
Place = Literal["show", "show create", "drop"]

_Classes = tuple[type[Relation], ...]

_MEANING: Final[dict[str, _Classes]] = {
    "any view": (View, MaterializedView),
    "dictionary": (DictionaryTable, DictionaryView),
    "index": (Index,),
    "materialized view": (MaterializedView,),
    "processor": (Processor,),
    "pump": (Pump, StoppedPump),
    "relation": (Relation,),
    "source": (Source,),
    "table": (Table,),
    "topic": (TopicTable, Processor),
    "view": (View,),
}

#: Words that mean something else in one place: external streams are sources, and streams are tables.
_THERE: Final[dict[tuple[Place, str], _Classes]] = {
    ("show", "stream"): (Stream, Source),
    ("show create", "stream"): (Table, Source),
    ("drop", "stream"): (Stream, Source, ExternalTable, ExternalView),
    ("drop", "topic"): (Table, MaterializedView),
}

#: What SHOW TABLES lists, by `Semantics.tables`.
_TABLES: Final[dict[str, _Classes]] = {
    "tables": (Table,),
    "plain": (Table,),
    "read": (Table, Source, MaterializedView),
}

#: What SHOW lists, and the word for one.
LISTED: Final = {
    "dictionaries": "dictionary",
    "indexes": "index",
    "materialized views": "materialized view",
    "pumps": "pump",
    "relations": "relation",
    "sources": "source",
    "streams": "stream",
    "tables": "table",
    "topics": "topic",
    "views": "view",
}


def is_meant(place: Place, word: str, relation: Relation, semantics: Semantics) -> bool:
    """Whether `word` stands for that relation. A pump does not count as the view that runs its query."""
    if place == "show" and word == "table":
        streams = semantics.tables != "plain" or not isinstance(relation, Stream)
        return streams and isinstance(relation, _TABLES[semantics.tables])
    if place == "show create" and word == "table" and semantics.tables == "read" and relation.topic is not None:
        return True
    if relation.pump and word not in ("pump", "relation"):
        return False
    return isinstance(relation, _THERE.get((place, word)) or _MEANING[word])
