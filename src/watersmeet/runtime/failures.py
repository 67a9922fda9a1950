"""Failed epochs: their errors, epochs without the failing operators, and the reports of all epochs.

Reports are lines of the log and spans of OpenTelemetry. Records of the log have `epoch`, `commit`, `view` and
`condition`, for programs that read logs. Each epoch is a trace: one span, with a child for each stage, which lasts from
the start of its first task to the end of its last. `start_tracing` sends traces to the address of
OTEL_EXPORTER_OTLP_ENDPOINT, with OpenTelemetry's other variables; it needs the extra `telemetry`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import duckdb

from watersmeet.catalog import Catalog
from watersmeet.circuit.epochs import Live, Mode, Rebuild
from watersmeet.errors import Error, error, error_from_json
from watersmeet.kernel.context import failing_operators
from watersmeet.kernel.evaluation.duck import is_interrupt
from watersmeet.runtime.taskcontract import Receipt
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.system.process import library

Result = TypeVar("Result")

#: Error conditions that are reported unchanged: those of the store and the sources, and the runtime's own.
_OWN = frozenset(
    {
        "AMPLIFICATION_LIMIT", "CONNECTOR_OPTION", "DATABASE_ACCESS", "DATABASE_DAMAGED", "DATABASE_FORMAT",
        "DATABASE_IN_USE", "DISK_FULL", "FEATURE_NOT_SUPPORTED", "OUT_OF_MEMORY", "PARALLELISM_MISMATCH",
        "RUNTIME_UNAVAILABLE", "SOURCE_STOPPED", "SOURCE_UNAVAILABLE", "STATE_DAMAGED", "STATE_MISMATCH",
        "UNDEFINED_OBJECT", "VIEW_FAILED", "WRITER_FENCED",
    }
)  # fmt: skip

#: Error conditions of the machine, the files and the writer, which no view causes.
_MACHINE: Final = frozenset(
    {
        "DATABASE_ACCESS", "DATABASE_FORMAT", "DATABASE_IN_USE", "DISK_FULL", "LIBRARY_MISSING",
        "PARALLELISM_MISMATCH", "QUERY_CANCELED", "RUNTIME_UNAVAILABLE", "WRITER_FENCED",
    }
)  # fmt: skip

_NO_SPACE: Final = "No space left on device"
_AGAIN: Final = "REFRESH MATERIALIZED VIEW computes the view again."


class TaskFailedError(Exception):
    """An exception of a task in another process. trace: that of the process. failed: the result of
    `operator_failed`.
    """

    def __init__(self, text: str, notes: str, trace: str, failed: Error) -> None:
        super().__init__(text)
        self.notes = notes
        self.trace = trace
        self.failed = failed


def run_without_failing(mode: Mode, run: Callable[[Mapping[str, Error]], Result]) -> tuple[Result, Mapping[str, Error]]:
    """Run an epoch, and repeat it without the operators that fail. Return the result, and the errors by operator.

    run: runs the tasks without the operators that it receives and all views that read these. A lack of memory stops
    an operator if it occurs twice in a row. Errors of the machine and of sources are raised, and so are all errors of
    an epoch that fills views: the statement that creates the view reports them.
    """
    failures: dict[str, Error] = {}
    retried = False
    while True:
        try:
            return run(failures), failures
        except Exception as cause:
            found = failing_operators(cause)
            if not isinstance(mode, (Live, Rebuild)) or not is_of_operators(cause) or failures.keys() >= set(found):
                raise
            if operator_failed(cause).condition == "OUT_OF_MEMORY" and not retried:
                retried = True
                continue
            retried = False
            failures |= dict.fromkeys(found, operator_failed(cause))


def is_of_operators(cause: Exception) -> bool:
    """False for errors of the machine, the files, the writer and sources, wherever they were raised."""
    if is_interrupt(cause) or isinstance(cause, (OSError, duckdb.IOException)) or _NO_SPACE in str(cause):
        return False
    return not isinstance(cause, Error) or (cause.source is None and cause.condition not in _MACHINE)


def operator_failed(cause: Exception) -> Error:
    """The error of an operator, as shown by the views that it stops."""
    if isinstance(cause, TaskFailedError):
        return cause.failed
    if isinstance(cause, Error):
        condition = cause.condition if cause.condition in _OWN else "VIEW_FAILED"
        return error(condition, cause.message, detail=cause.detail, hint=cause.hint or _AGAIN)
    lacks_memory = isinstance(cause, (MemoryError, duckdb.OutOfMemoryException))
    place = _place(cause)
    return error(
        "OUT_OF_MEMORY" if lacks_memory else "VIEW_FAILED",
        _text(cause),
        detail=f"The error was raised by {place}." if place else None,
        hint=_AGAIN,
    )


def _text(cause: Exception) -> str:
    return str(cause) if isinstance(cause, TaskFailedError) else f"{type(cause).__name__}: {cause}".rstrip(": ")


def _place(cause: Exception) -> str:
    """The function and the file that raised an error; empty if they are unknown."""
    last = traceback.extract_tb(cause.__traceback__)[-1:]
    return f"{last[0].name} in {last[0].filename.rpartition('/')[2]}" if last else ""


def view_failed(cause: Exception) -> Error:
    """`cause` itself if its condition is reported unchanged, else VIEW_FAILED with its text."""
    if isinstance(cause, Error) and cause.condition in _OWN:
        return cause
    if isinstance(cause, Error):
        return error("VIEW_FAILED", f"the views can't continue: {cause.message}", detail=cause.detail, hint=cause.hint)
    if _NO_SPACE in str(cause):
        # This is not an error of the store, but of the temporary files of Spark or DuckDB.
        return error(
            "DISK_FULL",
            "no space left for temporary files",
            detail=str(cause).strip().splitlines()[0],
            hint="Free some space and open the database again: nothing of the failed step was kept.",
        )
    if isinstance(cause, TaskFailedError):
        detail = f"A task failed ({cause.notes or 'see the trace'}). Nothing of the epoch was kept.\n{cause.trace}"
    else:
        place = _place(cause)
        detail = f"An epoch failed{f' ({place})' if place else ''}. Nothing of it was kept."
    return error(
        "VIEW_FAILED",
        f"the views can't continue: {_text(cause)}",
        detail=detail,
        hint="The content is as of the epoch before. Open the database again to try once more.",
    )


_LOG: Final = logging.getLogger(__name__)
_tracer: Any = None


def start_tracing() -> Callable[[], None]:
    """Starts to trace each epoch. Returns a function that sends unsent traces and stops. Raises LIBRARY_MISSING."""
    sdk = library("opentelemetry.sdk.trace", "traces")
    export = library("opentelemetry.sdk.trace.export", "traces")
    otlp = library("opentelemetry.exporter.otlp.proto.http.trace_exporter", "traces")
    resources = library("opentelemetry.sdk.resources", "traces")
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override this name.
    named = resources.Resource({"service.name": "watersmeet"}).merge(resources.OTELResourceDetector().detect())
    provider = sdk.TracerProvider(resource=named)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    trace_by(provider)

    def stop() -> None:
        trace_by(None)
        provider.shutdown()

    return stop


def trace_by(provider: Any) -> None:
    """Send the spans of epochs to a provider of OpenTelemetry; None to send none."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("watersmeet")


def report_committed(
    log: CommitLog, catalog: Catalog, commit: Commit, receipts: Sequence[Receipt], began_ns: int
) -> None:
    """Report a committed epoch. began_ns: when its tasks were started."""
    _LOG.debug(
        "epoch %s read %s rows in %.1f ms",
        commit.epoch,
        commit.metrics.rows,
        commit.metrics.duration_us / 1000,
        extra={
            "epoch": commit.epoch,
            "commit": commit.number,
            "rows": commit.metrics.rows,
            "duration_us": commit.metrics.duration_us,
        },
    )
    if commit.progress.stopped:
        before = log.epoch_before(commit)
        known = {} if before is None else before.progress.failed
        for relation_id, failure in commit.progress.stopped.items():
            if relation_id not in known and relation_id in catalog.relations:
                _stopped(catalog.relations[relation_id].shown, failure, commit)
    if _tracer is not None:
        _trace(commit, receipts, began_ns)


def report_failed(cause: Error, epoch: int | None) -> None:
    """Report that the engine has failed."""
    said = cause.to_json()
    more = {"epoch": epoch, "condition": said["condition"]}
    _LOG.error("the engine has failed: %s: %s", said["condition"], said["message"], extra=more)


def _stopped(view: str, failure: dict[str, Any], commit: Commit) -> None:
    cause = error_from_json(failure)
    _LOG.error(
        'view "%s" was stopped: %s: %s',
        view,
        cause.condition,
        cause.message,
        extra={"epoch": commit.epoch, "commit": commit.number, "view": view, "condition": cause.condition},
    )


def _trace(commit: Commit, receipts: Iterable[Receipt], began_ns: int) -> None:
    trace = library("opentelemetry.trace", "traces")
    ended_ns = max(commit.time_us * 1000, began_ns)
    attributes = {
        "watersmeet.epoch": commit.epoch,
        "watersmeet.commit": commit.number,
        "watersmeet.rows": commit.metrics.rows,
        "watersmeet.views_changed": len(commit.relations),
    }
    span = _tracer.start_span("epoch", start_time=began_ns, attributes=attributes)
    context = trace.set_span_in_context(span)
    by_stage: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        if receipt.began_ns:
            by_stage.setdefault(receipt.stage, []).append(receipt)
    for stage, parts in sorted(by_stage.items()):
        # A stage is always within its epoch, although clocks of other machines may be wrong.
        first, last = min(r.began_ns for r in parts), max(r.began_ns + r.took_ns for r in parts)
        begin = min(max(first, began_ns), ended_ns)
        end = min(max(last, begin), ended_ns)
        counts = [c for r in parts for c in r.operators.values()]
        made = {
            "watersmeet.stage": stage,
            "watersmeet.tasks": len(parts),
            "watersmeet.rows_out": sum(c.rows_out for c in counts),
            "watersmeet.task_seconds": sum(r.took_ns for r in parts) / 1e9,
        }
        _tracer.start_span(f"stage {stage}", context, start_time=begin, attributes=made).end(end)
    span.end(ended_ns)
