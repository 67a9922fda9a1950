"""What epochs tell those who watch: lines of the log, and spans of OpenTelemetry.

Nothing depends on it. Records of the log carry `epoch`, `commit`, `view` and `condition`, for logs that are read by
programs. Each epoch is a trace: one span, and below it one for each stage, from the beginning of its first task to the
end of its last one. `start_tracing` sends them to where the environment says (OTEL_EXPORTER_OTLP_ENDPOINT and others,
as OpenTelemetry defines them); it needs the extra `telemetry`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from watersmeet.catalog import Catalog
from watersmeet.errors import Error, error_from_json
from watersmeet.extras import library
from watersmeet.runtime.receipts import Receipt
from watersmeet.store.commits import Commit, CommitLog

_LOG: Final = logging.getLogger(__name__)

_tracer: Any = None


def start_tracing() -> Callable[[], None]:
    """From now on each epoch is a trace; gives what ends that, and sends what was not sent yet. LIBRARY_MISSING."""
    sdk = library("opentelemetry.sdk.trace", "traces")
    export = library("opentelemetry.sdk.trace.export", "traces")
    otlp = library("opentelemetry.exporter.otlp.proto.http.trace_exporter", "traces")
    resources = library("opentelemetry.sdk.resources", "traces")
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count more.
    named = resources.Resource({"service.name": "watersmeet"}).merge(resources.OTELResourceDetector().detect())
    provider = sdk.TracerProvider(resource=named)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    trace_by(provider)

    def stop() -> None:
        trace_by(None)
        provider.shutdown()

    return stop


def trace_by(provider: Any) -> None:
    """Gives the spans of epochs to a provider of OpenTelemetry's; None: no more."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("watersmeet")


def committed(log: CommitLog, catalog: Catalog, commit: Commit, receipts: Sequence[Receipt], began_ns: int) -> None:
    """An epoch was committed. began_ns: when its tasks were started."""
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
    if commit.progress.failed:
        before = log.find(commit.epoch_before) if commit.epoch_before else None
        known = {} if before is None else before.progress.failed
        for relation_id, failure in commit.progress.failed.items():
            if relation_id not in known and relation_id in catalog.relations:
                _stopped(catalog.relations[relation_id].shown, failure, commit)
    if _tracer is not None:
        _trace(commit, receipts, began_ns)


def failed(cause: Error, epoch: int | None) -> None:
    """The engine has failed."""
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
        # Clocks of other machines may go wrong: a stage is within its epoch.
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
