"""Views: stored queries, and relations that the circuit maintains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeGuard

from watersmeet.catalog.parts import MOST_JOIN_ROWS, Dictionary, External, Merging, Recomputing, Topic
from watersmeet.catalog.relations import NAMES_COLUMNS, Relation, Words
from watersmeet.values.watermarks import LateSide, Watermark

_PUMP: Final = Words("pump", show=("pumps",), show_create=("pump",), drop=("pump",))


@dataclass(frozen=True, slots=True)
class View(Relation):
    """A plain view: a stored query."""

    words: ClassVar[Words] = Words("view", show=("views",), show_create=("view",), drop=("view", "any view"))
    family: ClassVar[str] = "view"
    entry: ClassVar[str] = "view"


@dataclass(frozen=True, slots=True)
class ExternalView(View):
    """An external table over a relation of this database. query: the equivalent CREATE VIEW."""

    words: ClassVar[Words] = Words(
        "external table", show=("views",), show_create=("view",), drop=("view", "stream", "any view")
    )
    entry: ClassVar[str] = "external view"
    is_external: ClassVar[bool] = True

    external: External = field(kw_only=True)
    query: str = field(kw_only=True)

    @property
    def view_text(self) -> str:
        """The equivalent CREATE VIEW."""
        return self.query


@dataclass(frozen=True, slots=True)
class DictionaryView(View):
    """A dictionary over a relation of this database. query: the equivalent CREATE VIEW."""

    words: ClassVar[Words] = Words(
        "dictionary",
        show=("dictionaries", "views"),
        show_create=("dictionary", "view"),
        drop=("dictionary", "view", "any view"),
    )
    entry: ClassVar[str] = "dictionary view"
    is_external: ClassVar[bool] = True

    dictionary: Dictionary = field(kw_only=True)
    query: str = field(kw_only=True)

    @property
    def view_text(self) -> str:
        """The equivalent CREATE VIEW."""
        return self.query


@dataclass(frozen=True, slots=True)
class StoppedPump(View):
    """A stopped pump."""

    words: ClassVar[Words] = _PUMP
    entry: ClassVar[str] = "stopped pump"

    feeds: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Period:
    """The periods at whose end a view writes its stream; they begin at multiples of their length since 1970.

    whole: whether it writes the whole result of a period in which it changed, instead of its changes.
    """

    length_us: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class MaterializedView(Relation):
    """A view that the circuit maintains. feeds: the id of the stream or topic into which it writes; period: when it
    does; None: as soon as it changes. signs: whether its deleted rows delete rows of a mutable stream, too. row_key:
    columns that identify its rows; empty if the planner knows none. dropped: columns of its earlier queries, which
    stored rows may still have. defined: the version of the catalog since which it has its query; 0: always. fill_rate:
    the maximum number of rows per second of its history that are read while it is filled; 0: none until that changes;
    None: any number. fill_order: pairs of inputs, by id, of which the first is read before the second. background:
    whether no statement waits until it is filled. late: the rows that its operators drop as late, which are kept.
    empty: the relations without rows when its query began, from which it reads later rows, each with the commit at
    which it began. recompute: whether epochs compute it again instead of processing changes. rewritten: whether
    PROMOTE has deleted rows of an append-only view. delivered_as: the id of the view whose delivery to an external
    target it has continued since PROMOTE; empty: it has one of its own.
    """

    words: ClassVar[Words] = Words(
        "materialized view",
        show=("materialized views",),
        show_create=("materialized view",),
        drop=("materialized view", "any view", "topic"),
    )
    family: ClassVar[str] = "materialized view"
    entry: ClassVar[str] = "materialized view"
    has_rows: ClassVar[bool] = True
    is_stored: ClassVar[bool] = True

    watermarks: dict[str, Watermark] = field(default_factory=dict, kw_only=True, metadata=NAMES_COLUMNS)
    max_buffered_bytes: int | None = field(default=None, kw_only=True)
    most_join_rows: int = field(default=MOST_JOIN_ROWS, kw_only=True)
    recompute: Recomputing = field(default="auto", kw_only=True)
    feeds: str = field(default="", kw_only=True)
    period: Period | None = field(default=None, kw_only=True)
    signs: bool = field(default=False, kw_only=True)
    row_key: tuple[str, ...] = field(default=(), kw_only=True, metadata=NAMES_COLUMNS)
    dropped: tuple[str, ...] = field(default=(), kw_only=True)
    defined: int = field(default=0, kw_only=True)
    fill_rate: int | None = field(default=None, kw_only=True)
    fill_order: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    background: bool = field(default=False, kw_only=True)
    late: tuple[LateSide, ...] = field(default=(), kw_only=True)
    empty: dict[str, int] = field(default_factory=dict, kw_only=True)
    rewritten: bool = field(default=False, kw_only=True)
    delivered_as: str = field(default="", kw_only=True)

    @property
    def is_paused(self) -> bool:
        """Whether its fill is paused."""
        return self.fill_rate == 0

    @property
    def fills_later(self) -> bool:
        """Whether a restart opens the database first, and then continues its fill."""
        return self.background or self.fill_rate is not None

    @property
    def is_fed_by_circuit(self) -> bool:
        """Always True."""
        return True


@dataclass(frozen=True, slots=True)
class Pump(MaterializedView):
    """A started pump. merging: the rule of its MERGE, if it runs one."""

    words: ClassVar[Words] = _PUMP
    entry: ClassVar[str] = "pump"

    merging: Merging | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Processor(MaterializedView):
    """A processor together with the topic that it writes."""

    words: ClassVar[Words] = Words(
        "topic",
        role="processor",
        show=("topics", "materialized views"),
        show_create=("processor", "topic", "materialized view"),
        drop=("materialized view", "any view", "topic"),
    )
    entry: ClassVar[str] = "processor"
    can_alter: ClassVar[bool] = False

    topic: Topic = field(kw_only=True, metadata=NAMES_COLUMNS)

    @property
    def written_by(self) -> str:
        """The processor itself."""
        return "processor"


@dataclass(frozen=True, slots=True)
class TopicWriter(MaterializedView):
    """One of the processors that write the topic `feeds`, in Kafka or with others in the database. Only statements on
    processors can name it.
    """

    words: ClassVar[Words] = Words("processor")
    entry: ClassVar[str] = "topic writer"
    can_alter: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Query(MaterializedView):
    """A hidden query that runs until it is stopped."""

    words: ClassVar[Words] = Words("query")
    entry: ClassVar[str] = "query"

    @property
    def title(self) -> str:
        """Its name contains its kind."""
        return f"running {self.name}"

    @property
    def reader(self) -> str:
        """The same as `title`."""
        return self.title


@dataclass(frozen=True, slots=True)
class Subscription(MaterializedView):
    """A hidden query that persists without a reader (SUBSCRIBE TO).

    subscribed_us: its start, in microseconds since 1970 (UTC).
    """

    words: ClassVar[Words] = Words("subscription")
    entry: ClassVar[str] = "subscription"

    subscribed_us: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class CacheFill(MaterializedView):
    """The hidden relation with the rows that the view `owner` adds to the cache of a dictionary."""

    words: ClassVar[Words] = Words("materialized view")
    entry: ClassVar[str] = "cache fill"

    owner: str = field(kw_only=True)


def is_job(relation: Relation) -> TypeGuard[MaterializedView]:
    """Whether a relation is a view that is being filled."""
    return isinstance(relation, MaterializedView) and not relation.ready and not relation.hidden


def job_id(view: Relation) -> str:
    """The id of the fill of a view."""
    return view.id[1:]
