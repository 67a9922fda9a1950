"""From a relation with a connector to its source."""

from __future__ import annotations

from watersmeet.catalog import Relation
from watersmeet.errors import error
from watersmeet.sources.base import Source


def open_source(relation: Relation) -> Source:
    """The source of `relation`. Raises CONNECTOR_OPTION for options or columns that can't work."""
    raise error("FEATURE_NOT_SUPPORTED", f"connector {relation.connector.get('connector')} is not there yet")


def check_connector(relation: Relation) -> None:
    """Raises CONNECTOR_OPTION if `open_source` would: for CREATE."""
    open_source(relation)
