"""`watersmeet.sql`: one query of SQL over streaming DataFrames, as a streaming DataFrame.

The planner of the database compiles the query. Its circuit runs in Spark's tasks (`frames.tasks`), with a stateful
step for each exchange: a query whose operators all need one key has one step.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from sqlglot import exp

from watersmeet.binder import BoundQuery, bind_view
from watersmeet.binder.clauses.lookups import is_looked_up
from watersmeet.catalog import Catalog, EventTime, MaterializedView, Table
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Exchange, LateRowFilter, Map, Operator, Scan, Union, Unnest
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.definitions import CreateMaterializedView
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import Error, Span, error
from watersmeet.frames import sessions
from watersmeet.frames.api import given, signed, sums, with_metrics, without_metrics
from watersmeet.frames.buckets import Piece
from watersmeet.frames.building import Duration, Given, check_buckets, check_side, check_text, check_watermark, refused
from watersmeet.frames.sessions import carried_processor
from watersmeet.frames.shapes import QueryInput, QueryShape, arrow_columns, result_schema, spark_type, sql_type
from watersmeet.frames.tasks import (
    PIECE,
    QUERY_CHANGES,
    QUERY_FIGURES,
    Buckets,
    BucketsAt,
    QueryDecoder,
    Reading,
    Stage,
    initial_frames,
    initial_pieces,
)
from watersmeet.kernel.operators import STATEFUL
from watersmeet.planner import assemble, compile_view
from watersmeet.runtime.spark.shipping import bucket_keys
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.serialization import from_json
from watersmeet.values.types import Field, Schema
from watersmeet.values.watermarks import Term

_VIEW: Final = "CREATE MATERIALIZED VIEW result AS\n"
_NOW: Final = "__watersmeet_now"
_numbers: Final = itertools.count(1)

#: Operators that only a database can run: the order of arrival and the moment of creation are properties of its log.
_OF_DATABASES: Final = ("arrivals", "changelog", "changes", "cut", "records", "upsert", "versions")


def sql(
    spark: SparkSession,
    query: str,
    frames: Mapping[str, DataFrame] | None = None,
    *,
    watermarks: Mapping[str, tuple[str, Duration]] | None = None,
    diffs: Mapping[str, str] | None = None,
    buckets: int = 8,
    diff: str = "diff",
    name: str | None = None,
    state: str = sessions.STORE,
    checkpoint: str | None = None,
    **named: DataFrame,
) -> DataFrame:
    """The result of a query over streaming and static DataFrames, as a streaming DataFrame.

    query: a SELECT of Watersmeet's SQL. frames, named: the DataFrames by their names in the query. watermarks: for each
    name a column and how late rows may be, by default those of `withWatermark`. diffs: for each name the column of +1
    and -1 of a DataFrame whose rows may be retracted. buckets: the number of parts of the state of each step, fixed for
    a checkpoint. name, diff, state, checkpoint: see `join`; with a checkpoint, an unchanged query keeps its plan
    when a later version of Watersmeet would compile it differently.

    If no row can be retracted, the result has only the columns of the query, otherwise also `diff` (int). Raises Error;
    docs/DATAFRAMES.md has the rules.
    """
    read = _named(frames, named)
    for what, marks in (("watermarks", watermarks), ("diffs", diffs)):
        unknown = sorted((marks or {}).keys() - read.keys())
        if unknown:
            raise refused(what, unknown[0], f"It names none of the DataFrames: {', '.join(read)}.")
    check_buckets(buckets)
    if buckets < 2:
        raise refused("buckets", buckets, "A query needs at least 2.")
    check_text(diff, "diff")
    if name is not None:
        check_text(name, "name")
    sessions.check_state(state)
    prepared = {key: signed(frame, (diffs or {}).get(key), key) for key, frame in read.items()}
    sides = {key: _side(prepared[key], key, watermarks or {}, diffs or {}) for key in read}
    zone = str(spark.conf.get("spark.sql.session.timeZone") or "UTC")
    planned = plan(query, sides, buckets, zone)
    if checkpoint is not None and planned.shape.steps:
        planned = _as_begun(spark, checkpoint, name, query, planned)
    schema = _schema(planned.bound, diff, appends=planned.shape.appends)
    streams = [prepared[key] for key in planned.streams]
    return _running(
        spark, planned.shape, streams, {i: prepared[key] for key, i in planned.static.items()}, schema, name, state
    )


@dataclass(frozen=True)
class Planned:
    """A compiled query. streams: the names of the streaming DataFrames that it reads, in the order of the inputs.

    static: the relations of the static ones, by name.
    """

    bound: BoundQuery
    shape: QueryShape
    streams: tuple[str, ...]
    static: Mapping[str, str]


def plan(query: str, sides: Mapping[str, Given], buckets: int, zone: str = "UTC") -> Planned:
    """Compiles a query over DataFrames with the columns and watermarks `sides`. Raises Error."""
    catalog = Catalog(relations={r.id: r for r in _tables(sides)}, next_number=len(sides) + 1, zone=zone)
    bound, made = _compiled(query, catalog, {name for name, side in sides.items() if not side.streaming})
    scanned = {o.relation_id for o in made if isinstance(o, Scan)}
    ids = {relation.name: relation.id for relation in catalog.relations.values() if relation.id in scanned}
    streams = tuple(key for key in ids if sides[key].streaming)
    if not streams:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "a query that reads no streaming DataFrame",
            hint="Use spark.sql, or read a side with spark.readStream.",
        )
    inputs = tuple(_input(ids[key], sides[key]) for key in streams)
    shape = QueryShape(_circuit(made, inputs, buckets), inputs)
    static = {key: i for key, i in ids.items() if key not in streams}
    if not shape.steps and (static or any(o.kind == "constant" for o in made)):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "rows of a static DataFrame or of VALUES beside those of a stream, in a query without state",
            hint="Use union() of Spark.",
        )
    return Planned(bound, shape, streams, static)


def _as_begun(spark: SparkSession, checkpoint: str, name: str | None, query: str, planned: Planned) -> Planned:
    """The query with the circuit with which the checkpoint began. Raises STATE_MISMATCH for another query."""
    shape = planned.shape
    definition = shape.digest(json.dumps([query, shape.buckets, sorted(planned.static)]))
    kept = sessions.kept_plan(
        spark, checkpoint, name, shape, {"definition": definition, "circuit": shape.circuit.to_json()}
    )
    if kept is None:
        return planned
    return replace(planned, shape=replace(shape, circuit=from_json(Circuit, kept["circuit"])))


def _named(frames: Mapping[str, DataFrame] | None, named: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The DataFrames by name. Raises INVALID_PARAMETER for other values."""
    found = dict(frames or {})
    twice = sorted(found.keys() & named.keys())
    if twice:
        raise refused("frames", twice[0], "It is also an argument of its own.")
    found.update(named)
    if not found:
        raise error(
            "INVALID_PARAMETER",
            "the query has no DataFrames",
            hint='watersmeet.sql(spark, "SELECT …", orders=orders, payments=payments)',
        )
    for key, frame in found.items():
        check_text(key, "frames")
        check_side(frame, key)
    return found


def _side(
    frame: DataFrame, key: str, watermarks: Mapping[str, tuple[str, Duration]], diffs: Mapping[str, str]
) -> Given:
    mark, diff = watermarks.get(key), diffs.get(key)
    check_watermark(mark, key)
    found = given(frame, mark, diff)
    if found.signed and not found.streaming:
        raise refused("diffs", key, "A static DataFrame has no changes.")
    if found.signed and found.watermark is not None:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'a watermark on "{key}", whose rows may be retracted',
            hint="Leave the watermark out.",
        )
    if found.watermark is not None and found.watermark[1] < 0:
        raise refused("watermarks", mark, "The delay can't be negative.")
    return found


def _tables(sides: Mapping[str, Given]) -> list[Table]:
    """The relations of the query."""
    found = []
    for number, (key, side) in enumerate(sides.items(), 1):
        time = None
        if side.watermark is not None and side.streaming:
            column = next((c for c in side.columns if c.name.lower() == side.watermark[0].lower()), None)
            if column is None or column.type.name not in ("timestamp", "timestamptz"):
                raise refused("watermarks", side.watermark[0], f'It must be a timestamp column of "{key}".')
            time = EventTime(column.name, side.watermark[1])
        found.append(Table(f"t{number}", key, side.columns, append_only=not side.signed, event_time=time))
    return found


def _refuse_lookups(query: exp.Expression, text: str, static: Collection[str]) -> None:
    """Raises FEATURE_NOT_SUPPORTED for FOR SYSTEM_TIME: a look-up depends on the order of rows, and static DataFrames
    are read once.
    """
    for node in query.find_all(exp.Table):
        if is_looked_up(node):
            way = (
                f'Join it in Spark first: orders.join({node.name}, "key", "left") reads a static DataFrame of a Delta '
                "table again in each micro-batch."
                if node.name in static
                else "watersmeet.join(…, match=latest(…)) joins each row with the newest row of its key; ASOF JOIN … "
                "MATCH_CONDITION (…) with the row of a time."
            )
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'FOR SYSTEM_TIME AS OF of the DataFrame "{node.name}", in watersmeet.sql',
                sql=text,
                span=node_span(node),
                hint=way,
            )


def _compiled(query: str, catalog: Catalog, static: Collection[str]) -> tuple[BoundQuery, Sequence[Operator]]:
    """The bound query, and its operators. static: the names of static DataFrames. Raises errors of the parser, the
    binder and the planner, with their positions in the query.
    """
    check_text(query, "query")
    text = _VIEW + query
    try:
        statements = parse(text, DEFAULT_DIALECT)
        statement = statements[0]
        if len(statements) > 1 or not isinstance(statement, CreateMaterializedView):
            raise error("SYNTAX_ERROR", "watersmeet.sql runs one SELECT", sql=text, span=statements[-1].span)
        _refuse_lookups(statement.query, text, static)
        bound = bind_view(statement, catalog, DEFAULT_DIALECT)
        view = MaterializedView("m0", "result", bound.columns, sql=text, depends_on=bound.depends_on, zone=catalog.zone)
        return bound, compile_view(bound.tree, view, {}, catalog=catalog)
    except Error as problem:
        if problem.sql == text:
            problem.sql = query
            if problem.span is not None:
                start = max(0, problem.span.start - len(_VIEW))
                problem.span = Span(start, max(start, problem.span.end - len(_VIEW)))
        raise


def _input(relation_id: str, side: Given) -> QueryInput:
    time = delay_us = None
    if side.watermark is not None:
        name, delay_us = side.watermark
        time = next(i for i, c in enumerate(side.columns) if c.name.lower() == name.lower())
    return QueryInput(relation_id, side.columns, time, delay_us, side.signed)


def _circuit(made: Sequence[Operator], inputs: Sequence[QueryInput], buckets: int) -> Circuit:
    """The circuit that tasks run."""
    for op in made:
        if op.kind in _OF_DATABASES or (isinstance(op, Scan) and (op.ordered or op.partial)):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "a query that depends on the order in which rows arrive, in watersmeet.sql",
                detail="The rows of a micro-batch have no order.",
                hint="Use a database (watersmeet.connect), or watersmeet.join(…, match=latest(…)).",
            )
    circuit = assemble([made], buckets)
    at_source = [o for o in circuit.in_stage(0) if o.kind in STATEFUL or isinstance(o, LateRowFilter)]
    if at_source:
        raise error("FEATURE_NOT_SUPPORTED", f"{at_source[0].kind} of rows that no key distributes, in watersmeet.sql")
    timed = {i.relation_id: i.schema[i.time] for i in inputs if i.delay_us is not None and i.time is not None}
    return _LateRows(circuit, timed).circuit() if timed and circuit.last_stage else circuit


class _LateRows:
    """Makes a circuit drop late rows after its first exchanges, because stage 0 does not know the watermarks.

    Stage 0 passes the times of its rows on, as additional last columns: one for each relation with a watermark.
    """

    def __init__(self, circuit: Circuit, timed: Mapping[str, Field]) -> None:
        """timed: the column with the times, by relation."""
        self._old = circuit
        self._timed = timed
        self._made: dict[str, Operator] = {}
        self._stages: dict[str, int] = {}
        self._new: dict[str, Operator] = {}
        """The new operators by the ids of the old ones."""
        self._hidden: dict[str, tuple[str, ...]] = {}
        """The relations of the additional columns of new operators."""

    def circuit(self) -> Circuit:
        """The new circuit."""
        for op in self._old.operators:
            stage = self._old.stages[op.id]
            self._new[op.id] = self._later(op, stage) if stage else self._at_source(op)
        found = Circuit(self._old.buckets, tuple(self._made.values()), self._stages)
        found.check()
        return found

    def _add(self, op: Operator, stage: int, hidden: tuple[str, ...] = ()) -> Operator:
        self._made.setdefault(op.id, op)
        self._stages[op.id] = stage
        self._hidden[op.id] = hidden
        return op

    def _later(self, op: Operator, stage: int) -> Operator:
        return self._add(replace(op, inputs=tuple(self._timely(self._new[i], stage).id for i in op.inputs)), stage)

    def _timely(self, op: Operator, stage: int) -> Operator:
        """The rows of an exchange of stage 0 that are not late, without the additional columns."""
        hidden = self._hidden[op.id]
        width = len(op.schema) - len(hidden)
        for number, relation_id in enumerate(hidden):
            bound, column = (Term(relation_id),), self._timed[relation_id].name
            found = LateRowFilter(
                (op.id,), op.schema, op.append_only, width + number, bound, relation_id, column, "", apart=stage
            )
            op = self._add(found, stage)
        return self._add(_columns(op, range(width)), stage) if hidden else op

    def _at_source(self, op: Operator) -> Operator:
        inputs = [self._new[i] for i in op.inputs]
        if isinstance(op, Scan) and op.relation_id in self._timed:
            return self._scan(op, self._timed[op.relation_id])
        hidden = tuple(dict.fromkeys(r for i in inputs for r in self._hidden[i.id]))
        if isinstance(op, Union):
            inputs = [self._padded(i, hidden) for i in inputs]
        moved = replace(op, inputs=tuple(i.id for i in inputs))
        if not hidden:
            return self._add(moved, 0)
        first = len(inputs[0].schema) - len(hidden)
        added = inputs[0].schema[first:]
        if isinstance(moved, (Union, Exchange)):
            return self._add(replace(moved, schema=_positional((*op.schema, *added))), 0, hidden)
        places = range(first, len(inputs[0].schema))
        if isinstance(moved, Map):
            exprs = (*moved.exprs, *(f"c{p}" for p in places))
            return self._add(replace(moved, schema=_positional((*op.schema, *added)), exprs=exprs), 0, hidden)
        if isinstance(moved, Unnest):
            kept = len(moved.keep)
            schema = _positional((*op.schema[:kept], *added, *op.schema[kept:]))
            wide = self._add(replace(moved, schema=schema, keep=(*moved.keep, *places)), 0)
            order = [*range(kept), *range(kept + len(hidden), len(schema)), *range(kept, kept + len(hidden))]
            return self._add(_columns(wide, order), 0, hidden)
        raise error("FEATURE_NOT_SUPPORTED", f"{op.kind} of a DataFrame with a watermark, in watersmeet.sql")

    def _scan(self, op: Scan, time: Field) -> Operator:
        """The scan with an additional column with the time."""
        scan: Operator = op
        if time.name not in op.names:
            scan = replace(op, names=(*op.names, time.name), schema=(*op.schema, time))
        self._add(scan, 0)
        names = op.names if time.name in op.names else (*op.names, time.name)
        order = [*range(len(op.schema)), names.index(time.name)]
        return self._add(_columns(scan, order), 0, (op.relation_id,))

    def _padded(self, op: Operator, hidden: tuple[str, ...]) -> Operator:
        """The rows with a column for each of the relations `hidden`, NULL for other relations."""
        own = self._hidden[op.id]
        width = len(op.schema) - len(own)
        exprs = [f"c{i}" for i in range(width)]
        exprs += [
            f"c{width + own.index(r)}" if r in own else f"CAST(NULL AS {self._timed[r].type.duckdb})" for r in hidden
        ]
        schema = _positional([*op.schema[:width], *(self._timed[r] for r in hidden)])
        return self._add(Map((op.id,), schema, op.append_only, tuple(exprs), None), 0, hidden)


def _positional(fields: Sequence[Field]) -> Schema:
    return tuple(replace(field, name=f"c{i}") for i, field in enumerate(fields))


def _columns(op: Operator, positions: Sequence[int]) -> Map:
    """Some columns of an operator."""
    schema = _positional([op.schema[p] for p in positions])
    return Map((op.id,), schema, op.append_only, tuple(f"c{p}" for p in positions), None)


def _schema(bound: BoundQuery, diff: str, *, appends: bool) -> t.StructType:
    """The schema of the result. Raises DUPLICATE_COLUMN if the query has a column `diff`."""
    fields = [t.StructField(c.name, spark_type(c.name, c.type.arrow)) for c in bound.columns]
    if appends:
        return t.StructType(fields)
    if any(c.name.lower() == diff.lower() for c in bound.columns):
        raise error(
            "DUPLICATE_COLUMN",
            f'the result would have two columns "{diff}"',
            hint="Rename the column with AS, or choose another diff=.",
        )
    return t.StructType([*fields, t.StructField(diff, t.IntegerType(), nullable=False)])


def _running(
    spark: SparkSession,
    shape: QueryShape,
    streams: Sequence[DataFrame],
    static: Mapping[str, DataFrame],
    schema: t.StructType,
    name: str | None,
    state: str,
) -> DataFrame:
    """The DataFrame that runs a query. static: the static DataFrames by relation."""
    if shape.steps:
        sessions.check_store(spark, state)
    carries = sessions.prepare(spark)
    carry = partial(sessions.task, carries=carries)
    in_store = state == sessions.STORE
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    keys = bucket_keys(shape.buckets) if in_store else tuple(range(shape.buckets))
    initial = _initial(spark, shape, static)
    now = f.current_timestamp().alias(_NOW)
    moved = None
    for index, stream in enumerate(streams):
        reading = Reading(shape, index, keys, partitions if in_store else None)
        found = stream.select("*", now).mapInArrow(carry(reading), PIECE if shape.steps else QUERY_CHANGES)
        moved = found if moved is None else moved.union(found)
    assert moved is not None
    decoder = QueryDecoder(result_schema(schema), diff=not shape.appends)
    for number in range(1, shape.steps + 1):
        stage = Stage(shape, number, initial if number == 1 else {})
        output = QUERY_CHANGES if stage.is_last else PIECE
        if in_store:
            buckets = Buckets(stage, keys)
            processor = carried_processor(buckets) if carries else buckets
            moved = moved.groupBy("bucket").transformWithStateInPandas(processor, output, "Append", "None")
        else:
            at_path = BucketsAt(stage, state, decoder if stage.is_last else None)
            rows = with_metrics(schema) if stage.is_last else PIECE
            moved = sessions.placed(moved, shape.buckets).mapInArrow(carry(at_path), rows)
    has_rows = shape.steps > 0 and not in_store
    observed = moved.observe(name or f"watersmeet-sql-{next(_numbers)}", *sums(QUERY_FIGURES, in_one=has_rows))
    if has_rows:
        return without_metrics(observed, schema)
    return observed.mapInArrow(carry(decoder), schema)


def _initial(
    spark: SparkSession, shape: QueryShape, static: Mapping[str, DataFrame]
) -> Mapping[int, tuple[Piece, ...]]:
    """The pieces of static DataFrames and constants by bucket."""
    if not shape.steps:
        return {}
    tables = {i: frame.toArrow() for i, frame in static.items()}
    content = {}
    for scan in shape.circuit.scans:
        if scan.relation_id in tables:
            schema = tuple(Field(x.name, sql_type(x.dataType, x.name)) for x in static[scan.relation_id].schema.fields)
            arrays = dict(zip((x.name for x in schema), arrow_columns(tables[scan.relation_id], schema), strict=True))
            content[scan.id] = [arrays[column] for column in scan.names]
    pieces = initial_pieces(shape.circuit, initial_frames(shape.circuit, content))
    sessions.check_static(spark, sum(len(p.body) for found in pieces.values() for p in found))
    return pieces
