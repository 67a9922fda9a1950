"""The target `deltalake`: a table of Delta Lake.

Each version that a sink writes has rows and, as transactions of an application (Delta's protocol, "Transaction
Identifiers"), the place of the last one and the number of the writer. Two writers of one sink are in conflict
whatever they write, so a version is added only by who knows all that the sink has written. Whoever opens the target
writes a version without rows: writers before it are behind then. Versions of others, as of a compaction, don't matter.

RisingWave, "Sink data to Delta Lake". Upserts are Watersmeet's own: a merge by the key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet
from watersmeet.connectors.base.targets import (
    Connector,
    Delivery,
    Place,
    SinkBatch,
    Target,
    Unavailable,
    newest_rows,
    rows_that_came,
)
from watersmeet.connectors.lakes.client import (
    DELTA_OPTIONS,
    delta_library,
    delta_location,
    delta_problem,
    delta_storage,
    first_line,
)
from watersmeet.connectors.lakes.targets import TARGET_OPTIONS, LakeColumns, check_form
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import EXACT_JSON
from watersmeet.formats.writers import json_writer
from watersmeet.system.process import fault
from watersmeet.values.types import SqlType

#: How often a version is tried again that somebody else came before.
_ATTEMPTS: Final = 10
_GONE: Final = "__watersmeet_gone"
SINK_OPTIONS: Final = OptionSet("deltalake of sinks", (*DELTA_OPTIONS, *TARGET_OPTIONS))
#: Delta has no such types: they are written as text.
_AS_TEXT: Final = ("time", "interval")


@dataclass(frozen=True)
class _Options:
    """location: a directory or a URL. storage: of the library."""

    location: str
    storage: dict[str, str]
    partition_by: tuple[str, ...]
    creates: bool


class DeltaTarget:
    """See `base.Target`."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._delivery = delivery
        self._options = _options(delivery)
        self._library = delta_library()
        self._exceptions = delta_library("deltalake.exceptions")
        self._names = [c.name for c in delivery.columns]
        self._columns = LakeColumns(delivery.columns, _AS_TEXT, {})
        by_name = {c.name: c for c in delivery.columns}
        self._is_upsert = delivery.format.rows == "upsert"
        self._keys = json_writer(tuple(by_name[name] for name in delivery.key), EXACT_JSON)
        self._application = f"watersmeet-{database_id}-{delivery.target_id}"
        self._partition_columns: list[str] = []
        self._table: Any = None
        self._writer = 0

    def look(self) -> None:
        """Whether the table is there and takes the rows, or can be made. Unavailable, CONNECTOR_OPTION, …"""
        with self._explained():
            self._open_table()

    def open(self, generation: int) -> Place | None:
        with self._explained():
            for _ in range(_ATTEMPTS):
                table = self._table = self._open_table()
                found = self._place(table)
                if found is not None and found.generation > generation:
                    raise self._fenced(f"generation {found.generation} is delivered")
                self._writer = (table.transaction_version(f"{self._application}-writer") or 0) + 1
                fault("delta.looked")
                with contextlib.suppress(self._exceptions.CommitFailedError):
                    self._append(self._columns.schema.empty_table(), found)
                    fault("delta.fenced")
                    return found
        raise Unavailable(f"{self._what}: others write without end")

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        place = batches[-1].place
        with self._explained():
            rows = self._changes(batches) if self._is_upsert else self._added(batches)
            for _ in range(_ATTEMPTS):
                fault("delta.begun")
                try:
                    if self._is_upsert:
                        self._merge(rows, place)
                    else:
                        self._append(rows, place)
                except self._exceptions.CommitFailedError:
                    self._table = table = self._open_table()
                    if table.transaction_version(f"{self._application}-writer") != self._writer:
                        raise self._fenced("another writer has taken over") from None
                    if self._place(table) == place:
                        return  # it was written, and the answer got lost
                    continue
                fault("delta.committed")
                return
        raise Unavailable(f"{self._what}: others write without end")

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self._table = None

    @property
    def _what(self) -> str:
        return f'Delta table "{self._options.location}"'

    def _fenced(self, why: str) -> Error:
        return error("WRITER_FENCED", f"{self._delivery.title} was replaced: {why}")

    def _open_table(self) -> Any:
        """The newest version. UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH."""
        options = self._options
        try:
            table = self._library.DeltaTable(options.location, storage_options=options.storage)
        except self._exceptions.TableNotFoundError as cause:
            if not options.creates:
                raise error(
                    "UNDEFINED_OBJECT",
                    f"there is no {self._what}",
                    hint="Create it first, or add create_table_if_not_exists = 'true'.",
                ) from cause
            self._columns.check_partitions(self._what, options.partition_by, _is_partition_type)
            table = self._library.DeltaTable.create(
                options.location,
                self._columns.schema,
                mode="ignore",
                partition_by=list(options.partition_by) or None,
                storage_options=options.storage,
            )
        self._columns.check(self._what, pa.schema(table.schema().to_arrow()))
        self._partition_columns = [n for n in table.metadata().partition_columns if n in self._names]
        self._columns.check_partitions(self._what, self._partition_columns, _is_partition_type)
        return table

    def _place(self, table: Any) -> Place | None:
        generation, commit, rows = (
            table.transaction_version(f"{self._application}-{part}") for part in ("generation", "commit", "rows")
        )
        return None if generation is None else Place(generation, commit, rows >> 1, bool(rows & 1))

    def _properties(self, place: Place | None) -> Any:
        """What goes into a version beside the rows. Nothing is tried again blindly: the place may have moved."""
        numbers = {"writer": self._writer}
        if place is not None:
            numbers |= {"generation": place.generation, "commit": place.commit, "rows": place.rows << 1 | place.last}
        return self._library.CommitProperties(
            max_commit_retries=0,
            app_transactions=[self._library.Transaction(f"{self._application}-{n}", v) for n, v in numbers.items()],
        )

    def _append(self, rows: pa.Table, place: Place | None) -> None:
        self._library.write_deltalake(self._table, rows, mode="append", commit_properties=self._properties(place))

    def _merge(self, rows: pa.Table, place: Place) -> None:
        if not len(rows):
            self._append(self._columns.schema.empty_table(), place)
            return
        source, target = "s", "t"
        values = {_quoted(n): f"{source}.{_quoted(n)}" for n in self._names}
        gone = f"{source}.{_quoted(_GONE)}"
        # The library skips files by statistics only for `=`, which never matches NULL.
        same = " AND ".join(
            f"({target}.{_quoted(k)} {'<=>' if rows.column(k).null_count else '='} {source}.{_quoted(k)})"
            for k in self._delivery.key
        )
        (
            self._table.merge(
                rows, same, source_alias=source, target_alias=target, commit_properties=self._properties(place)
            )
            .when_matched_delete(predicate=gone)
            .when_matched_update(updates=values)
            .when_not_matched_insert(updates=values, predicate=f"NOT {gone}")
            .execute()
        )

    def _added(self, batches: Sequence[SinkBatch]) -> pa.Table:
        return self._written(pa.concat_tables([rows_that_came(p).select(self._names) for p in batches]))

    def _changes(self, batches: Sequence[SinkBatch]) -> pa.Table:
        rows, gone = newest_rows(batches, self._names, self._keys)
        return self._written(rows, gone).append_column(_GONE, pa.array(gone))

    def _written(self, rows: pa.Table, gone: npt.NDArray[np.bool_] | None = None) -> pa.Table:
        """Rows in the types of the table. DELIVERY_REFUSED for an empty text in a partition column, which Delta's
        protocol reads as NULL.
        """
        written = self._columns.written(rows)
        for name in self._partition_columns:
            column = written.column(name)
            empty = pc.fill_null(pc.equal(pc.binary_length(column), 0), fill_value=False) if _is_text(column) else None
            if empty is not None and pc.any(empty if gone is None else pc.and_not(empty, pa.array(gone))).as_py():
                raise error(
                    "DELIVERY_REFUSED",
                    f'a row has an empty text in partition column "{name}" of {self._what}',
                    detail="Delta Lake stores NULL for an empty text in a partition column.",
                    hint=f"Write nullif({name}, '') in the query of the sink, or choose another partition column.",
                )
        return written

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the library as those of the contract."""
        try:
            yield
        except (Error, Unavailable):
            raise
        except (self._exceptions.SchemaMismatchError, self._exceptions.DeltaProtocolError) as cause:
            raise error("DELIVERY_REFUSED", f"{self._what} refuses: {first_line(cause)}") from cause
        except (self._exceptions.DeltaError, OSError) as cause:
            reason = delta_problem(self._options.location, self._options.storage, cause)
            raise Unavailable(f"{self._what} can't be read or written: {reason}") from cause


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type))


def _is_partition_type(kind: SqlType) -> bool:
    """Whether all values of the type, as names of partitions, are read back unchanged by the library."""
    return kind.name not in ("real", "double precision", "bytea") and not (kind.name == "numeric" and kind.decimals)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _options(delivery: Delivery) -> _Options:
    """CONNECTOR_OPTION for options that are wrong."""
    check_form(delivery)
    given = delivery.connector
    options = SINK_OPTIONS.read(given)
    location = delta_location(given)
    by_name = {c.name for c in delivery.columns}
    partition_by = tuple(n.strip() for n in options.text("partition_by").split(",") if n.strip())
    for name in partition_by:
        if name not in by_name:
            raise error(
                "CONNECTOR_OPTION",
                f'partition_by names "{name}", which is no column',
                hint=did_you_mean(name, by_name),
            )
    return _Options(location, delta_storage(given), partition_by, options.flag("create_table_if_not_exists"))


def _check(delivery: Delivery) -> None:
    target = DeltaTarget(delivery, "")
    try:
        target.look()
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause), hint="Check the option location, and credentials.") from cause


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:
    del stopping
    return DeltaTarget(delivery, database_id)


CONNECTOR: Final = Connector(_check, _open)
