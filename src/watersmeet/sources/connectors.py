"""From a relation with a connector to its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from watersmeet.catalog import Input, MessageFormat, Relation
from watersmeet.clients.lakes import CONNECTORS as LAKES
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.registry import with_kept_schema
from watersmeet.objectstores.access import check_objects
from watersmeet.sources.base import Source
from watersmeet.sources.datagen import DatagenSource
from watersmeet.sources.fileoptions import absolute_path
from watersmeet.sources.files import FileSource
from watersmeet.sources.kafka.source import KafkaSource, begun
from watersmeet.sources.lakes.source import LakeSource
from watersmeet.sources.lakes.source import begun as lake_begun
from watersmeet.sources.nexmark import NexmarkSource
from watersmeet.sources.options import refuse
from watersmeet.sources.ratelimit import LimitedSource, rate_limit

Made = TypeVar("Made", bound=Input)


CONNECTORS: Final[dict[str, Callable[[Relation], Source]]] = {
    "azblob": FileSource,
    "datagen": DatagenSource,
    "delta": LakeSource,
    "deltalake": LakeSource,
    "file": FileSource,
    "gcs": FileSource,
    "iceberg": LakeSource,
    "kafka": KafkaSource,
    "nexmark": NexmarkSource,
    "posix_fs": FileSource,
    "s3": FileSource,
    "s3_v2": FileSource,
}


def open_source(relation: Relation) -> Source:
    """The source of `relation`, which gives all columns that are `given`.

    CONNECTOR_OPTION for options or columns that can't work.
    """
    name = relation.connector.get("connector", "")
    make = CONNECTORS.get(name.lower())
    if make is None:
        refuse(
            f'there is no connector "{name}"',
            hint=did_you_mean(name, CONNECTORS) or "There are " + ", ".join(sorted(CONNECTORS)) + ".",
        )
    limit = rate_limit(relation.connector)
    source = make(replace(relation, columns=relation.given))
    return source if limit is None else LimitedSource(source, limit)


def _with_kept_schema(form: MessageFormat) -> MessageFormat:
    """The format with the schema of its file. RUNTIME_UNAVAILABLE if that can't be read for now."""
    try:
        return replace(form, options=with_kept_schema(form.options))
    except OSError as cause:
        raise error("RUNTIME_UNAVAILABLE", f"option schema.location: {cause}") from cause


def check_connector(relation: Made) -> Made:
    """The relation as the catalog should keep it, with absolute paths, and the offsets at which reading begins: for
    CREATE.

    Raises CONNECTOR_OPTION if `open_source` would, or if objects can't be listed; RUNTIME_UNAVAILABLE if their store,
    or a schema of messages, can't be reached.
    """
    open_source(relation)
    if relation.format is not None:
        relation = replace(relation, format=_with_kept_schema(relation.format))
    if relation.connector["connector"].lower() in LAKES:
        return replace(relation, connector=lake_begun(relation.as_stored))
    check_objects(relation.connector)
    if relation.connector["connector"].lower() == "kafka":
        return replace(relation, connector=begun(relation.connector))
    paths = {n: absolute_path(v) for n, v in relation.connector.items() if n in ("path", "posix_fs.root")}
    return replace(relation, connector={**relation.connector, **paths})
