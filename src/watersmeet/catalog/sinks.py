"""Sinks: what is delivered to targets outside of the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog.parts import MessageFormat
from watersmeet.catalog.relations import Relation
from watersmeet.catalog.views import MaterializedView
from watersmeet.catalog.words import Words


@dataclass(frozen=True, slots=True)
class Sink(Relation):
    """A sink: the changes of one relation go to a target. Its columns are those that go out, under the names there.

    One INTO a table has no connector: its query writes the table, as its `feeds` says.

    delivers: id of that relation, whose first columns they are. connector: the options of the target, lower-case names.
    format: in which form changes go out; the encodings matter to targets of messages alone. primary_key: the key at
    the target. force_append_only: deleted rows are left out. target_id: the id of the first sink that was replaced by
    this one or those between, by which the target knows it; its own if there is none. generation: how many sinks there
    were of that id, this one included: each begins anew with the whole content. rate_limit: the rows a second that go
    out at most; 0: it is paused; None: any number.
    """

    words: ClassVar[Words] = Words("sink", show=("sinks",), show_create=("sink",), drop=("sink",))
    family: ClassVar[str] = "sink"
    entry: ClassVar[str] = "sink"
    can_alter: ClassVar[bool] = False

    delivers: str = field(kw_only=True)
    connector: dict[str, str] = field(kw_only=True)
    format: MessageFormat = field(default_factory=MessageFormat, kw_only=True)
    force_append_only: bool = field(default=False, kw_only=True)
    target_id: str = field(kw_only=True)
    generation: int = field(default=1, kw_only=True)
    rate_limit: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class SinkQuery(MaterializedView):
    """The query of the sink `owner`, hidden.

    deletes: of one INTO a table, whether rows that go are taken away there. skips: whether rows that the table refuses
    are set aside; else they hold the sink back.
    """

    words: ClassVar[Words] = Words("sink")
    entry: ClassVar[str] = "sink query"

    owner: str = field(kw_only=True)
    deletes: bool = field(default=False, kw_only=True)
    skips: bool = field(default=False, kw_only=True)
