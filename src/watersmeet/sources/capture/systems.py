"""The systems whose databases are captured, by their connectors."""

from __future__ import annotations

from typing import Final

from watersmeet.errors import error
from watersmeet.sources.capture.contract import System
from watersmeet.sources.capture.mysql.system import MysqlSystem
from watersmeet.sources.capture.postgres.system import PostgresSystem

SYSTEMS: Final[dict[str, System]] = {s.connector: s for s in (PostgresSystem(), MysqlSystem())}


def system_of(connector: str) -> System:
    """The system of a connector. FEATURE_NOT_SUPPORTED for one that is none of theirs."""
    found = SYSTEMS.get(connector.lower())
    if found is None:
        raise error("FEATURE_NOT_SUPPORTED", f"connector {connector} is not supported")
    return found
