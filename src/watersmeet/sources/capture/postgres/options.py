"""The options of connector `postgres-cdc`.

RisingWave, "Ingest data from PostgreSQL CDC".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watersmeet.clients.databaseservers import Server
from watersmeet.sources.capture.contract import DatabaseOptions
from watersmeet.sources.capture.options import needed
from watersmeet.sources.options import Options, refuse

CONNECTOR: Final = "postgres-cdc"
_SSL: Final = ("disable", "disabled", "allow", "prefer", "preferred", "require", "required", "verify-ca", "verify-full")
_PORT: Final = 5432


@dataclass(frozen=True)
class PostgresOptions(DatabaseOptions):
    """creates_publication: it is made, and tables are added to it, if it lacks them."""

    slot: str
    publication: str
    creates_publication: bool


def database_options(given: Mapping[str, str]) -> PostgresOptions:
    """CONNECTOR_OPTION for what is missing, unknown or wrong. The slot has a name already."""
    options = Options({n: v for n, v in given.items() if n != "connector" and not n.startswith("debezium.")})
    mode = options.choice("ssl.mode", among=_SSL, default="prefer")
    found = PostgresOptions(
        Server(
            needed(options, "hostname", CONNECTOR),
            options.integer("port", default=_PORT, minimum=1, maximum=65535) or _PORT,
            needed(options, "username", CONNECTOR),
            options.text("password") or "",
            needed(options, "database.name", CONNECTOR),
            {"disabled": "disable", "preferred": "prefer", "required": "require"}.get(mode, mode),
        ),
        options.text("schema.name") or "public",
        bool(options.flag("auto.schema.change")),
        needed(options, "slot.name", CONNECTOR),
        options.text("publication.name") or "rw_publication",
        options.flag("publication.create.enable") is not False,
    )
    options.flag("transactional")  # changes of a transaction are always one commit
    if not all(c.isascii() and (c.isalnum() or c == "_") for c in found.slot) or found.slot.lower() != found.slot:
        refuse(f'option slot.name can\'t be "{found.slot}"', hint="It has lower-case letters, digits and _ only.")
    options.finish(CONNECTOR)
    return found
