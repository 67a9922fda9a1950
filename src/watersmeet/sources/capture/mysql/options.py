"""The options of connector `mysql-cdc`.

RisingWave, "Ingest data from MySQL CDC".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watersmeet.clients.databaseservers import SSL_MODES, Server, ssl_mode
from watersmeet.sources.capture.contract import DatabaseOptions
from watersmeet.sources.capture.options import needed
from watersmeet.sources.options import Options

CONNECTOR: Final = "mysql-cdc"
SERVER_ID: Final = "server.id"
#: Numbers that a replica can have.
SERVER_IDS: Final = (1, (1 << 32) - 1)
#: How MySQL writes the modes of TLS.
_MODES: Final = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
_PORT: Final = 3306


@dataclass(frozen=True)
class MysqlOptions(DatabaseOptions):
    """server_id: the number that the reader of the log has among the replicas of the server."""

    server_id: int


def database_options(given: Mapping[str, str]) -> MysqlOptions:
    """CONNECTOR_OPTION for what is missing, unknown or wrong. The reader has a number already."""
    options = Options({n: v for n, v in given.items() if n != "connector" and not n.startswith("debezium.")})
    mode = options.choice("ssl.mode", among=(*SSL_MODES, *_MODES), default="prefer")
    database = needed(options, "database.name", CONNECTOR)
    lowest, highest = SERVER_IDS
    found = MysqlOptions(
        Server(
            needed(options, "hostname", CONNECTOR),
            options.integer("port", default=_PORT, minimum=1, maximum=65535) or _PORT,
            needed(options, "username", CONNECTOR),
            options.text("password") or "",
            database,
            ssl_mode(mode.replace("_", "-")),
        ),
        database,
        bool(options.flag("auto.schema.change")),
        options.integer(SERVER_ID, default=lowest, minimum=lowest, maximum=highest) or lowest,
    )
    options.flag("transactional")  # changes of a transaction are always one commit
    options.finish(CONNECTOR)
    return found
