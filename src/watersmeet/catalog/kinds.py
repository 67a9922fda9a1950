"""All kinds of relations."""

from __future__ import annotations

from typing import Final

from watersmeet.catalog.captured import CapturedDatabase, CapturedTable
from watersmeet.catalog.relations import Relation
from watersmeet.catalog.rowless import Connection, FormatSchema, NamedCollection, NamedSubscription, Server
from watersmeet.catalog.sinks import Sink, SinkQuery
from watersmeet.catalog.tables import (
    AddressRanges,
    DictionaryTable,
    ExternalTable,
    Index,
    QuerySource,
    Source,
    Stream,
    Table,
    TopicTable,
)
from watersmeet.catalog.views import (
    CacheFill,
    DictionaryView,
    ExternalView,
    MaterializedView,
    Processor,
    Pump,
    Query,
    StoppedPump,
    Subscription,
    TopicWriter,
    View,
)
from watersmeet.values.serialization import kinds

#: Each is stored under the name of its `entry`.
KINDS: Final[tuple[type[Relation], ...]] = (
    Table,
    Stream,
    TopicTable,
    ExternalTable,
    DictionaryTable,
    AddressRanges,
    CapturedTable,
    Source,
    QuerySource,
    CapturedDatabase,
    View,
    ExternalView,
    DictionaryView,
    StoppedPump,
    MaterializedView,
    Pump,
    Processor,
    TopicWriter,
    Query,
    Subscription,
    CacheFill,
    Index,
    Sink,
    SinkQuery,
    Server,
    Connection,
    FormatSchema,
    NamedCollection,
    NamedSubscription,
)
kinds(Relation, {c.entry: c for c in KINDS}, by="entry")

#: The words of plain SQL for them.
FAMILIES: Final = tuple(dict.fromkeys(c.family for c in KINDS))
#: What SHOW lists of them.
SHOWN: Final = tuple(dict.fromkeys(w for c in KINDS for w in c.words.show))
#: What stands behind SHOW CREATE for them.
SHOWN_CREATED: Final = tuple(dict.fromkeys(w for c in KINDS for w in c.words.show_create))
