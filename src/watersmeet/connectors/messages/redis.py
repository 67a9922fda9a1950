"""The target `redis`: keys of a Redis server, one for each row, or messages of its channels, or members of its
geospatial indexes.

Each batch is one transaction of Redis, which also writes the offset of the last row into a hash of the same database.
A writer that opens the target writes its token into this hash; the transactions of earlier writers watch the hash, so
they then change nothing.

RisingWave, "Sink data from RisingWave to Redis".
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target, newest_rows, rows_that_came
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.encoders import Destination, open_writer
from watersmeet.formats.writers import Writer
from watersmeet.system import process
from watersmeet.system.process import fault
from watersmeet.system.secretvalues import revealed
from watersmeet.values.types import Field

SINK_OPTIONS: Final = OptionSet(
    "redis of sinks",
    (
        OptionSpec(
            "redis.url",
            "The server and its database, as `redis://user:password@host:6379/0`; rediss:// for TLS.",
            is_needed=True,
        ),
    ),
)
#: The options of FORMAT … ENCODE … that Redis adds to those of JSON.
_FORM_OPTIONS: Final = (
    *("redis_value_type", "key_format", "value_format", "channel", "channel_column"),
    *("longitude", "latitude", "member"),
)
_JSON_OPTIONS: Final = ("timestamptz.handling.mode", "jsonb.handling.mode")
_VALUE_TYPES: Final = ("string", "pubsub", "geospatial")
#: The prefix of the hashes with the offsets of sinks.
_PROGRESS: Final = "watersmeet:sink:"
_TIMEOUT_S: Final = 30
#: The beginnings of temporary errors: the server loads its data, lacks memory, or is a replica during a failover.
_PASSING: Final = re.compile(r"(?i)(LOADING|OOM|MISCONF|READONLY|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|BUSY)\b")


def library() -> ModuleType:
    """The module redis. Raises LIBRARY_MISSING if it is not installed."""
    return process.library("redis", "sinks of Redis")


class RedisTarget(Target):
    """See `base.targets.Target`."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._delivery = delivery
        self._url = _checked_url(SINK_OPTIONS.read(delivery.connector).needed("redis.url"))
        self._progress = f"{_PROGRESS}{database_id}-{delivery.target_id}"
        self._form = _Form(delivery)
        self._redis = library()
        self._client: Any = None
        self._token = b""

    def look(self) -> None:
        """Checks that the server answers. Raises Unavailable, CONNECTOR_OPTION."""
        with self._explained():
            self._connect()
            self._client.ping()
        self.close()

    def open(self, generation: int) -> SinkOffset | None:
        self.close()
        with self._explained():
            self._connect()
            self._token = secrets.token_hex(8).encode()
            while True:
                with self._client.pipeline() as pipe:
                    pipe.watch(self._progress)
                    found = _offset_of(pipe.hgetall(self._progress))
                    fault("redis.read")
                    if found is not None and found.generation > generation:
                        raise error(
                            "WRITER_FENCED",
                            f"{self._delivery.title} was replaced: generation {found.generation} is delivered",
                        )
                    pipe.multi()
                    pipe.hset(self._progress, "writer", self._token)
                    with contextlib.suppress(self._redis.WatchError):  # another writer was faster
                        pipe.execute()
                        fault("redis.fenced")
                        return found

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        with self._explained(), self._client.pipeline() as pipe:
            pipe.watch(self._progress)
            if pipe.hget(self._progress, "writer") != self._token:
                raise self._fenced()
            pipe.multi()
            fault("redis.begun")
            self._form.write(pipe, batches)
            pipe.hset(self._progress, mapping=_stored(batches[-1].offset))
            fault("redis.written")
            try:
                pipe.execute()
            except self._redis.WatchError:
                raise self._fenced() from None
            fault("redis.committed")

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(self._redis.RedisError, OSError):
                client.close()

    def _connect(self) -> None:
        self._client = self._redis.Redis.from_url(
            revealed(self._url), socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, client_name="watersmeet"
        )

    def _fenced(self) -> Exception:
        return error("WRITER_FENCED", f"another process delivers {self._delivery.title}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the client to those of the contract."""
        parts = urlsplit(revealed(self._url))
        where = f"Redis at {parts.hostname}:{parts.port or 6379}"
        try:
            yield
        except (self._redis.AuthenticationError, self._redis.exceptions.NoPermissionError) as cause:
            raise error(
                "CONNECTOR_OPTION",
                f"{where} refuses the credentials",
                detail=str(cause),
                hint="Check user and password in redis.url, and the user's rights.",
            ) from None
        except (self._redis.ConnectionError, self._redis.TimeoutError, OSError) as cause:
            raise Unavailable(f"{where} can't be reached: {cause}") from None
        except self._redis.RedisError as cause:
            if _PASSING.match(str(cause)):
                raise Unavailable(f"{where} takes nothing now: {cause}") from None
            raise error("DELIVERY_REFUSED", f"{where} refuses rows of {self._delivery.title}: {cause}") from None


class _Form:
    """Writes batches as commands of Redis. Raises CONNECTOR_OPTION for options that contradict each other."""

    def __init__(self, delivery: Delivery) -> None:
        form, options = delivery.format, delivery.format.options
        if form.rows == "debezium" or form.encoding not in ("json", "template"):
            refuse(
                f"connector redis does not write FORMAT {form.rows.upper()} ENCODE {form.encoding.upper()}",
                hint="FORMAT PLAIN and UPSERT, ENCODE JSON and TEMPLATE exist.",
            )
        for name in options:
            if name not in (*_FORM_OPTIONS, *_JSON_OPTIONS):
                known = (*_FORM_OPTIONS, *_JSON_OPTIONS)
                refuse(f'connector redis of sinks has no option "{name}"', hint=did_you_mean(name, known))
        if not delivery.key:
            refuse("connector redis of sinks needs a key", hint="Name its columns: primary_key = 'a, b'.")
        self._type = options.get("redis_value_type", "string").lower()
        if self._type not in _VALUE_TYPES:
            refuse(f'option redis_value_type can\'t be "{self._type}"', hint=f"It is {', '.join(_VALUE_TYPES)}.")
        if self._type != "string" and form.encoding != "template":
            refuse(f"redis_value_type = '{self._type}' needs ENCODE TEMPLATE")
        self._delivery = delivery
        self._names = [c.name for c in delivery.columns]
        by_name = {c.name: c for c in delivery.columns}
        keyed = tuple(by_name[name] for name in delivery.key)
        destination = Destination("", "", delivery.title)
        encoding = form.key_encoding or form.encoding
        # Identifies rows by the values of their keys, because a template may give two keys the same text.
        self._identity = open_writer(keyed, "json", {}, destination, part="key")
        self._keys: Writer | None = None
        self._values: Writer | None = None
        if self._type != "pubsub":
            self._keys = open_writer(keyed, encoding, options, destination, part="key")
        if self._type != "geospatial":
            self._values = open_writer(delivery.columns, form.encoding, options, destination)
        self._channel = options.get("channel", "")
        self._channel_column = self._column("channel_column", "varchar") if "channel_column" in options else None
        if self._type == "pubsub" and bool(self._channel) == bool(self._channel_column):
            refuse("redis_value_type = 'pubsub' needs the option channel or channel_column, and not both")
        if self._type == "geospatial":
            numbers = ("real", "double precision", "varchar")
            self._place = [self._column(name, *numbers) for name in ("longitude", "latitude")]
            self._member = self._column("member", "varchar")
            if self._member.name not in delivery.key:
                refuse("the column of option member has to be in primary_key")

    def write(self, pipe: Any, batches: Sequence[SinkBatch]) -> None:
        """Adds the commands for batches to a transaction. Raises DELIVERY_REFUSED for a row that has no key."""
        rows, gone = self._changed(batches)
        if not len(rows):
            return
        if self._type == "string":
            self._write_strings(pipe, rows, gone)
        elif self._type == "pubsub":
            self._publish(pipe, rows)
        else:
            self._write_places(pipe, rows, gone)

    def _changed(self, batches: Sequence[SinkBatch]) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """The rows to write in order, and whether each is removed. Messages are about each row that came."""
        if self._delivery.format.rows == "upsert" and self._type != "pubsub":
            return newest_rows(batches, self._names, self._identity)
        rows = pa.concat_tables([rows_that_came(p).select(self._names) for p in batches])
        return rows, np.zeros(len(rows), np.bool_)

    def _write_strings(self, pipe: Any, rows: pa.Table, gone: npt.NDArray[np.bool_]) -> None:
        keys, values = self._written(self._keys, rows), self._written(self._values, rows)
        removed = keys.filter(pa.array(gone)).to_pylist()
        if removed:  # first: a template may give a removed row the key of another one
            pipe.delete(*removed)
        kept = pa.array(~gone)
        new = dict(zip(keys.filter(kept).to_pylist(), values.filter(kept).to_pylist(), strict=True))
        if new:
            pipe.mset(new)

    def _publish(self, pipe: Any, rows: pa.Table) -> None:
        values = self._written(self._values, rows).to_pylist()
        channels: Sequence[Any] = [self._channel] * len(values)
        if self._channel_column is not None:
            channels = self._whole(rows, self._channel_column)
        for channel, value in zip(channels, values, strict=True):
            pipe.publish(channel, value)

    def _write_places(self, pipe: Any, rows: pa.Table, gone: npt.NDArray[np.bool_]) -> None:
        removed, kept = rows.filter(pa.array(gone)), rows.filter(pa.array(~gone))
        for key, member in zip(
            self._written(self._keys, removed).to_pylist(), self._whole(removed, self._member), strict=True
        ):
            pipe.zrem(key, member)
        longitudes, latitudes = (kept.column(column.name).to_pylist() for column in self._place)
        keys, members = self._written(self._keys, kept).to_pylist(), self._whole(kept, self._member)
        for key, member, longitude, latitude in zip(keys, members, longitudes, latitudes, strict=True):
            if longitude is None or latitude is None:
                raise self._refused(f"Member {member} has no longitude or latitude.")
            pipe.geoadd(key, (longitude, latitude, member))

    def _written(self, writer: Writer | None, rows: pa.Table) -> pa.BinaryArray:
        assert writer is not None
        found = writer.write(rows)
        if found.null_count:
            raise self._refused("A key or value is NULL.")
        return found

    def _whole(self, rows: pa.Table, column: Field) -> list[Any]:
        values = rows.column(column.name)
        if values.null_count:
            raise self._refused(f'Column "{column.name}" is NULL.')
        found: list[Any] = values.to_pylist()
        return found

    def _refused(self, detail: str) -> Exception:
        return error("DELIVERY_REFUSED", f"a row of {self._delivery.title} can't be written to Redis", detail=detail)

    def _column(self, option: str, *types: str) -> Field:
        """The column that an option names. Raises CONNECTOR_OPTION, UNDEFINED_COLUMN, DATATYPE_MISMATCH."""
        name = self._delivery.format.options.get(option)
        if not name:
            refuse(f"redis_value_type = '{self._type}' needs the option {option}", hint="It is the name of a column.")
        found = next((c for c in self._delivery.columns if c.name == name), None)
        if found is None:
            raise error("UNDEFINED_COLUMN", f'column "{name}" of option {option} does not exist')
        if found.type.name not in types:
            raise error(
                "DATATYPE_MISMATCH",
                f'column "{name}" of option {option} has type {found.type.sql}',
                hint=f"It needs {' or '.join(types)}.",
            )
        return found


def _checked_url(url: str) -> str:
    """The URL as given. Raises CONNECTOR_OPTION; FEATURE_NOT_SUPPORTED for a cluster."""
    shown = revealed(url)
    if shown.lstrip().startswith("["):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a cluster of Redis servers is not supported",
            detail="A transaction of Redis is within one server.",
            hint="Write the URL of one server: redis.url = 'redis://host:6379/'.",
        )
    parts = urlsplit(shown)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        refuse("option redis.url has to be redis://host:6379/ or rediss://host:6379/")
    return url


def _stored(offset: SinkOffset) -> dict[str, int]:
    return {"generation": offset.generation, "commit": offset.commit, "rows": offset.rows, "last": int(offset.last)}


def _offset_of(found: Mapping[bytes, bytes]) -> SinkOffset | None:
    """The offset in a hash; None if nothing was delivered. Raises DELIVERY_MISMATCH for a hash of something else."""
    if not found.keys() - {b"writer"}:
        return None
    try:
        generation, commit, rows, last = (int(found[n]) for n in (b"generation", b"commit", b"rows", b"last"))
    except (KeyError, ValueError) as cause:
        raise error("DELIVERY_MISMATCH", "the hash of the sink's offset in Redis was changed by others") from cause
    return SinkOffset(generation, commit, rows, bool(last))
