"""The catalog: what a database contains. Pure data, stored as JSON by `store.catalogs`.

`relations` has what all relations have; `tables`, `views` and `sinks` a class for each kind, `words` what kinds are
called.

A relation has a `name` that the user sees and an `id` that is never used twice: data, state and commits are kept under
the id, so a name that is dropped and created again starts empty.
"""

from watersmeet.catalog.captured import Captured, CapturedDatabase, CapturedTable
from watersmeet.catalog.connections import Connection
from watersmeet.catalog.contents import Catalog
from watersmeet.catalog.formatschemas import FormatSchema
from watersmeet.catalog.functions import SqlFunction
from watersmeet.catalog.kinds import FAMILIES, KINDS, SHOWN, SHOWN_CREATED
from watersmeet.catalog.namedcollections import NamedCollection
from watersmeet.catalog.parts import (
    ARRIVAL,
    COMMON_SCHEMA,
    DELTA_COLUMN,
    KEY_COLUMN,
    META_FACET,
    MOST_JOIN_ROWS,
    RECORD_HEADERS,
    RECORD_NUMBER,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    ROWTIME,
    TIME_COLUMN,
    TOMBSTONE,
    VALUE_FACET,
    ComputedPart,
    Dictionary,
    Encoding,
    EventTime,
    External,
    GeneratedColumn,
    Known,
    Merging,
    MessageFormat,
    RowForm,
    StreamMode,
    Topic,
)
from watersmeet.catalog.relations import Relation, turned_into
from watersmeet.catalog.roles import Role, RoleChange
from watersmeet.catalog.servers import Server
from watersmeet.catalog.sinks import Sink, SinkQuery
from watersmeet.catalog.subscriptions import NamedSubscription
from watersmeet.catalog.tables import (
    LAKES,
    AddressRanges,
    DictionaryTable,
    ExternalTable,
    Index,
    Input,
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
from watersmeet.catalog.words import DropWord, Words, one

__all__ = [
    "ARRIVAL",
    "COMMON_SCHEMA",
    "DELTA_COLUMN",
    "FAMILIES",
    "KEY_COLUMN",
    "KINDS",
    "LAKES",
    "META_FACET",
    "MOST_JOIN_ROWS",
    "RECORD_HEADERS",
    "RECORD_NUMBER",
    "RECORD_OFFSET",
    "RECORD_PARTITION",
    "RECORD_TIME",
    "ROWTIME",
    "SHOWN",
    "SHOWN_CREATED",
    "TIME_COLUMN",
    "TOMBSTONE",
    "VALUE_FACET",
    "AddressRanges",
    "CacheFill",
    "Captured",
    "CapturedDatabase",
    "CapturedTable",
    "Catalog",
    "ComputedPart",
    "Connection",
    "Dictionary",
    "DictionaryTable",
    "DictionaryView",
    "DropWord",
    "Encoding",
    "EventTime",
    "External",
    "ExternalTable",
    "ExternalView",
    "FormatSchema",
    "GeneratedColumn",
    "Index",
    "Input",
    "Known",
    "MaterializedView",
    "Merging",
    "MessageFormat",
    "NamedCollection",
    "NamedSubscription",
    "Processor",
    "Pump",
    "Query",
    "QuerySource",
    "Relation",
    "Role",
    "RoleChange",
    "RowForm",
    "Server",
    "Sink",
    "SinkQuery",
    "Source",
    "SqlFunction",
    "StoppedPump",
    "Stream",
    "StreamMode",
    "Subscription",
    "Table",
    "Topic",
    "TopicTable",
    "TopicWriter",
    "View",
    "Words",
    "one",
    "turned_into",
]
