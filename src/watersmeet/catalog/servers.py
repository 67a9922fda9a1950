"""Servers: what foreign streams have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from watersmeet.catalog.relations import Relation
from watersmeet.catalog.words import Words


@dataclass(frozen=True, slots=True)
class Server(Relation):
    """A server of SQLstream: options that foreign streams inherit. It has no columns and no rows.

    adapter: KAFKA10 or FILE. options: as they are written.
    """

    words: ClassVar[Words] = Words("server", show=("servers",), show_create=("server",), drop=("server",))
    family: ClassVar[str] = "source"
    entry: ClassVar[str] = "server"
    can_alter: ClassVar[bool] = False

    adapter: str = field(kw_only=True)
    options: dict[str, str] = field(default_factory=dict, kw_only=True)
