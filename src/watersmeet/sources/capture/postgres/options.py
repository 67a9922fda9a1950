"""The options of connector `postgres-cdc`.

RisingWave, "Ingest data from PostgreSQL CDC".
"""

from __future__ import annotations

import re
import secrets
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
_SLOT, _PUBLICATION, _CREATES = "slot.name", "publication.name", "publication.create.enable"
#: RisingWave's name, for publications that are not created here and for sources that were created without a name.
_SHARED_PUBLICATION: Final = "rw_publication"
#: Names that `default_options` gives.
_GENERATED: Final = re.compile(r"watersmeet_[0-9a-f]{16}")


@dataclass(frozen=True)
class PostgresOptions(DatabaseOptions):
    """creates_publication: it is created, and tables are added to it, if it lacks them."""

    slot: str
    publication: str
    creates_publication: bool

    @property
    def shares_publication(self) -> bool:
        """Whether other readers may use the publication, as its name was given."""
        return _GENERATED.fullmatch(self.publication) is None


def default_options(given: Mapping[str, str]) -> dict[str, str]:
    """Names of a slot and a publication that only a new source uses. A publication that must exist is RisingWave's."""
    name = f"watersmeet_{secrets.token_hex(8)}"
    creates = Options(given).flag(_CREATES) is not False
    return {_SLOT: name, _PUBLICATION: name if creates else _SHARED_PUBLICATION}


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
        needed(options, _SLOT, CONNECTOR),
        options.text(_PUBLICATION) or _SHARED_PUBLICATION,
        options.flag(_CREATES) is not False,
    )
    options.flag("transactional")  # changes of a transaction are always one commit
    if not all(c.isascii() and (c.isalnum() or c == "_") for c in found.slot) or found.slot.lower() != found.slot:
        refuse(f'option slot.name can\'t be "{found.slot}"', hint="It has lower-case letters, digits and _ only.")
    options.finish(CONNECTOR)
    return found
