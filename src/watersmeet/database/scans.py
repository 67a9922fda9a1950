"""The rows that a query reads besides the newest content: moments of the past, Kafka topics, system relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import duckdb
import pyarrow as pa

from watersmeet.algebra.bounded import Past, PastScan, TopicScan
from watersmeet.binder.clauses.sources import DEAD_LETTERS, SYSTEM_RELATIONS
from watersmeet.catalog import (
    SYSTEM_CATALOGS,
    Catalog,
    LateRows,
    Relation,
    Source,
    catalog_rows,
)
from watersmeet.catalog.roles import Rights
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.deadletters import MAX_TEXT, DeadLetterWriter, stored_dead_letters
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.database.opened import OpenDatabase
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.expressions import with_lengths
from watersmeet.runtime.epochstatus import FILLS
from watersmeet.store.changes import quoted
from watersmeet.store.checkpoints import (
    PastContent,
    check_there,
    checkpoint_upto,
    commit_at,
    expired,
    pin_past,
    shown_time,
)
from watersmeet.store.commits import Commit
from watersmeet.store.inplace import ContentHash, Needed, Share, StoredRows
from watersmeet.store.readers import Reader, low_water_number
from watersmeet.system.process import lazy_import
from watersmeet.values.types import Field, arrow_schema

if TYPE_CHECKING:
    from watersmeet.connectors import datagen
    from watersmeet.connectors.kafka import client as kafkaclient
    from watersmeet.connectors.kafka import reading as kafkareading
    from watersmeet.connectors.kafka import source as kafkasource
    from watersmeet.connectors.messages import logs as messagelogs
else:
    datagen = lazy_import("watersmeet.connectors.datagen")
    kafkaclient = lazy_import("watersmeet.connectors.kafka.client")
    kafkareading = lazy_import("watersmeet.connectors.kafka.reading")
    kafkasource = lazy_import("watersmeet.connectors.kafka.source")
    messagelogs = lazy_import("watersmeet.connectors.messages.logs")


@contextmanager
def pinned_past(
    database: OpenDatabase, scans: Sequence[PastScan], catalog: Catalog, text: str
) -> Iterator[list[PastContent]]:
    """The content that a query reads as of earlier moments, which is pinned inside the block.

    text: the statement that errors show. Raises HISTORY_GONE, and INVALID_PARAMETER for a future commit.
    """
    found: list[PastContent] = []
    with closing(Reader(database.layout)) as hold:
        by_name = {scan.name: scan for scan in scans}
        numbers = {}
        for scan in by_name.values():
            with _placed(scan, text):
                numbers[scan.name] = _commit(database, scan.past)
        # the last one is the oldest, which also pins all others
        falling = sorted(by_name.values(), key=lambda s: numbers[s.name], reverse=True)
        for scan in falling:
            relation, number = catalog.relations[scan.relation_id], numbers[scan.name]
            with _placed(scan, text):
                if scan.past.by == "own commit":
                    if not hold.try_pin(number):
                        raise expired(database.layout, database.log, f"commit {number}")
                    upto = number
                else:
                    upto = pin_past(database.layout, database.log, hold, number).upto(relation)
                    check_there(database.log, [relation], number)
            found.append(PastContent(scan.name, scan.relation_id, upto))
        yield found


def content_hashes(
    database: OpenDatabase, relations: Sequence[Relation], number: int | None = None
) -> dict[str, ContentHash]:
    """The hash of the content of each relation, by id, as SELECT AS OF commit `number` (by default the newest) shows
    it. Raises HISTORY_GONE, and INVALID_PARAMETER for a future commit.
    """
    with closing(Reader(database.layout)) as hold:
        number = database.log.head() if number is None else number
        moment = pin_past(database.layout, database.log, hold, number)
        check_there(database.log, relations, number)
        return {r.id: database.content.content_hash(r, moment.upto(r)) for r in relations}


#: The rows of a share that is worth a task of its own, and the maximum number of shares.
_SHARE_ROWS: Final = 1 << 18
_MOST_SHARES: Final = 256


def shares_of(database: OpenDatabase, relation: Relation, number: int, count: int | None = None) -> list[Share]:
    """The shares of the rows of a stored relation at commit `number`, which other processes can read as long as the
    history is kept. count: how many, by default as its size suggests. Empty if the rows can't be divided, because the
    commit is older than every kept checkpoint.

    Raises HISTORY_GONE, and INVALID_PARAMETER for a future commit.
    """
    with closing(Reader(database.layout)) as hold:
        upto = pin_past(database.layout, database.log, hold, number).upto(relation)
        check_there(database.log, [relation], number)
        checkpoint = checkpoint_upto(database.layout, database.log, upto).moment.head
        try:
            with database.content.pinned(checkpoint) as files:
                rows = files.stored_rows([relation])[relation.id]
        except Error as err:
            if err.condition != "HISTORY_GONE":
                raise
            return []
    wanted = min(-(-rows // _SHARE_ROWS), _MOST_SHARES) if count is None else count
    return [Share(i, max(wanted, 1), checkpoint) for i in range(max(wanted, 1))]


@contextmanager
def share_rows(
    database: OpenDatabase, relation: Relation, number: int, share: Share, names: Sequence[str]
) -> Iterator[StoredRows]:
    """The rows of a share at commit `number`, with some of the columns. Raises HISTORY_GONE."""
    with closing(Reader(database.layout)) as hold, database.content.pinned(share.checkpoint) as files:
        upto = pin_past(database.layout, database.log, hold, number).upto(relation)
        yield files.rows(relation, upto, Needed(frozenset(names)), share=share)


def late_between(database: OpenDatabase, catalog: Catalog, late: LateRows) -> tuple[int | None, int | None]:
    """The times of the oldest and the newest kept late row, in microseconds since 1970 (UTC); None without rows."""
    at = quoted(late.columns[0].name)
    with database.content.reader(catalog, [late.id]) as (connection, _):
        row = connection.execute(
            f"SELECT epoch_us(min({at})), epoch_us(max({at})) FROM {quoted(late.shown)}"
        ).fetchone()
    return row or (None, None)


def outdated_late_rows(database: OpenDatabase, late: LateRows, before_us: int, most: int) -> pa.Table | None:
    """The late rows to delete: those older than a time, and the oldest above a number of rows. None without any."""
    at = quoted(late.columns[0].name)
    with database.content.reader(database.catalog, [late.id]) as (connection, _):
        rows = connection.execute(
            f"SELECT * FROM {quoted(late.shown)} QUALIFY epoch_us({at}) < {before_us} "
            f"OR row_number() OVER (ORDER BY {at} DESC) > {most}"
        ).to_arrow_table()
    return rows if rows.num_rows else None


def own_commit(database: OpenDatabase, relation: Relation, number: int, newest: Commit, low_water: int) -> int:
    """The last commit that affects a relation's own content for a query that began after commit `number`.

    A relation that the circuit feeds counts as of the epoch that read all earlier commits. newest: the newest epoch.
    low_water: the commit up to which history may be deleted; if it covers that epoch, the result is lower.
    """
    if not relation.is_fed_by_circuit or number < low_water:
        return number
    began = database.log.find(number)
    transaction, found = number if began is None else began.last_transaction, 0
    epoch: Commit | None = newest
    while epoch is not None and epoch.number > low_water and epoch.frontier is not None:
        if epoch.frontier.transaction < transaction or (found and found <= number):
            break
        found = epoch.number
        epoch = database.log.find(epoch.epoch_before)
    return found


@contextmanager
def _placed(scan: PastScan, text: str) -> Iterator[None]:
    """Adds the position of the scan to errors inside the block."""
    try:
        yield
    except Error as err:
        err.sql, err.span = text or None, scan.span
        raise


def _commit(database: OpenDatabase, past: Past) -> int:
    """The number of the commit. Raises HISTORY_GONE for a time before the oldest kept commit."""
    wanted = f"epoch_us({past.sql})" if past.by == "time" else past.sql
    with database.content.session() as connection:
        row = connection.execute(f"SELECT {wanted}").fetchone()
    if row is None or row[0] is None:
        raise error("INVALID_PARAMETER", "a moment of the past can't be NULL")
    if past.by != "time":
        return int(row[0])
    low_water, time = low_water_number(database.layout), shown_time(int(row[0]))
    number = commit_at(database.log, int(row[0]), low_water)
    if not number:
        raise error("HISTORY_GONE", f"the database had no commits at {time}", hint="SHOW COMMITS lists those it has.")
    if number == low_water:
        raise expired(database.layout, database.log, time)
    return number


class Reading(Protocol):
    """The parts of a session that a read needs."""

    @property
    def database(self) -> OpenDatabase:
        """The open database."""
        ...

    @property
    def catalog(self) -> Catalog:
        """The catalog that the session sees."""
        ...

    @property
    def rights(self) -> Rights:
        """The rights of the session."""
        ...

    def notice(self, text: str) -> None:
        """Adds a notice for the user."""
        ...


def messages_now(session: Reading, relation: Relation, topic: TopicScan) -> pa.Table:
    """The present content of a source, such as the messages that are committed in a topic, with the columns of `topic`.

    A notice reports the number of undecodable messages. Raises RUNTIME_UNAVAILABLE, CONNECTOR_OPTION, UNDEFINED_OBJECT.
    """
    assert isinstance(relation, Source), "the binder reads no other relation so"
    connector = relation.connector.get("connector", "").lower()
    if not connector:  # a checked script
        outputs = tuple(Field(c.name, c.type, c.nullable) for c in topic.outputs)
        return arrow_schema(outputs, positional=False).empty_table()
    if connector != "kafka":
        return _rows_now(session, relation, topic)
    names = [c.name for c in topic.outputs]
    given = {n: v for n, v in relation.connector.items() if n != kafkaclient.START}
    read = replace(
        relation,
        columns=tuple(c for c in relation.columns if c.name in names or c.name not in relation.message_parts),
        message_parts={c: part for c, part in relation.message_parts.items() if c in names},
        connector=kafkasource.begun(kafkasource.starting_from(given, topic.start, topic.shards)),
    )
    source, aside = kafkasource.KafkaSource(read), DeadLetterWriter(None)
    columns = tuple(Field(c.name, c.type, c.nullable) for c in topic.outputs)
    try:
        rows = kafkareading.read_topic(source.now(), source.spec(), columns, aside)
    except Unavailable as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause), hint="Try again.") from cause
    if aside.first is not None:
        session.notice(f"{relation.title}: {_left_out(aside)}")
    return with_lengths(rows, relation.lengths)


def _left_out(aside: DeadLetterWriter) -> str:
    first = aside.first
    assert first is not None
    from_topic = first.get("offset") is not None
    fields, what = (("partition", "offset"), "message") if from_topic else (("file", "line"), "record")
    place = ", ".join(f"{name} {first[name]}" for name in fields if first.get(name) is not None)
    count = f"1 {what} is" if aside.rows == 1 else f"{aside.rows} {what}s are"
    return f"{count} left out (the first: {place}: {first['reason']})"


#: The rows and bytes of a poll, so that a query does not hold all slices of a large source at once.
_POLL_ROWS, _POLL_BYTES = 1_000_000, 1 << 28
#: A moment at which all rows of a generator with an end have been generated.
_END_US: Final = 1 << 60


def _rows_now(session: Reading, relation: Source, topic: TopicScan) -> pa.Table:
    """The present content of a source without a topic, read by a source of its own, from its beginning.

    Raises FEATURE_NOT_SUPPORTED for generated rows without an end.
    """
    left_out = (messagelogs.STARTS, "scan.startup.", "source_rate_limit")
    connector = {n: v for n, v in relation.connector.items() if not n.startswith(left_out)}
    source = connectors.source_connector(connector).open(replace(relation, columns=relation.given, connector=connector))
    columns = tuple(Field(c.name, c.type, c.nullable) for c in topic.outputs)
    rows = [arrow_schema(columns, positional=False).empty_table()]
    aside, position = DeadLetterWriter(None), None
    generated = isinstance(source, datagen.PacedSource)
    if isinstance(source, datagen.PacedSource) and not source.ends:
        hint = "Set datagen.max.rows, or create a materialized view over it and read that."
        raise error("FEATURE_NOT_SUPPORTED", f"{relation.title} can't be read by a query: it has no end", hint=hint)
    try:
        while True:
            now_us = _END_US if generated and position is not None else session.database.clock.now_us()
            found = source.poll(position, _POLL_ROWS, _POLL_BYTES, now_us, fresh=True)
            if (problem := source.status().get("problem")) is not None:
                raise error("RUNTIME_UNAVAILABLE", f"{relation.title}: {problem}", hint="Try again.")
            rows += [connectors.read_slice(piece, source.spec(), columns, aside).table for piece in found.slices]
            source.accept(found.slices)
            position = found.position
            if found.finished or not (found.slices or generated):
                break
    except (OSError, Unavailable) as cause:
        raise error("RUNTIME_UNAVAILABLE", str(cause), hint="Try again.") from cause
    finally:
        if isinstance(source, messagelogs.LogSource):
            source.close()
    if aside.first is not None:
        session.notice(f"{relation.title}: {_left_out(aside)}")
    return with_lengths(pa.concat_tables(rows), relation.lengths)


_STORED: Final = "_watersmeet_system"


@contextmanager
def system_relations(session: Reading, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> Iterator[None]:
    """Inside the block, some system relations are views of the connection."""
    made = []
    try:
        for i, name in enumerate(names):
            stored = f"{_STORED}_{i}"
            gather, values = _GATHERED[name]
            connection.register(stored, gather(session))
            made.append((stored, name))
            columns = ", ".join(
                f"CAST({values.get(c.name, quoted(c.name))} AS {c.type.duckdb}) AS {quoted(c.name)}"
                for c in SYSTEM_RELATIONS[name]
            )
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {stored}")
        yield
    finally:
        for stored, name in made:
            connection.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
            connection.unregister(stored)


def _dead_letters(session: Reading) -> pa.Table:
    layout, rights = session.database.layout, session.rights
    readable = (r for r in session.catalog.relations.values() if rights.may("SELECT", r.id))
    return stored_dead_letters([(r.shown, layout.dead(r.id)) for r in readable])


def _catalog(name: str) -> Callable[[Reading], pa.Table]:
    """The function that collects the rows of a relation of the system catalogs."""
    schema = arrow_schema(SYSTEM_CATALOGS[name], positional=False)

    def rows(session: Reading) -> pa.Table:
        shows = FILLS.get(name)
        found = (
            catalog_rows(name, session.catalog)
            if shows is None
            else shows(session.database.log, session.database.sizes, session.catalog)
        )
        return pa.table([pa.array([r[i] for r in found], f.type) for i, f in enumerate(schema)], schema=schema)

    return rows


#: For each system relation, the function that collects its rows, and its computed columns in DuckDB SQL.
_GATHERED: Final[dict[str, tuple[Callable[[Reading], pa.Table], dict[str, str]]]] = {
    **{name: (_catalog(name), {}) for name in SYSTEM_CATALOGS},
    DEAD_LETTERS: (
        _dead_letters,
        {
            "key": "from_base64(key)",
            "value": "from_base64(value)",
            "text": f"coalesce(text, left(try(decode(from_base64(value))), {MAX_TEXT}))",
            "rows": "coalesce(rows, 1)",
        },
    ),
}
