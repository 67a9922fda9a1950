"""A target in the memory of the test: it keeps the law of targets, checks what it gets, and fails when it is told."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Connector, Delivery, SinkBatch, SinkOffset
from watersmeet.connectors.registry import register
from watersmeet.errors import error

OPTIONS = OptionSet(
    "memory of sinks",
    (OptionSpec("topic", "The name of the target."), OptionSpec("password", "Opens it.", secret=True)),
)


@dataclass
class Topic:
    """What is at the target for one sink: batches as they were acknowledged, of the newest generation."""

    writer: int = 0
    generation: int = 0
    batches: list[SinkBatch] = field(default_factory=list)
    opened: int = 0

    @property
    def changes(self) -> list[tuple[tuple, int]]:
        return [
            (tuple(row.values()), int(d))
            for p in self.batches
            for row, d in zip(p.rows.to_pylist(), p.diff, strict=True)
        ]

    @property
    def content(self) -> list[tuple]:
        total: Counter = Counter()
        for row, diff in self.changes:
            total[row] += diff
        assert all(n >= 0 for n in total.values())
        return sorted(total.elements(), key=repr)


class Memory:
    """All targets of the connector `memory`, by the database and the name under which the target knows a sink.

    fails: called before and after each step with its name; what it raises is raised.
    """

    def __init__(self) -> None:
        self.topics: dict[tuple[str, str], Topic] = {}
        self.lock = threading.Lock()
        self.fails = lambda step: None

    def install(self) -> None:
        register("memory", Connector(lambda d: OPTIONS.read(d.connector).check(), self._open))

    def topic(self, target_id: str) -> Topic:
        return next(t for (_, name), t in self.topics.items() if name == target_id)

    def _open(self, delivery: Delivery, database_id: str, stopping) -> MemoryTarget:
        with self.lock:
            topic = self.topics.setdefault((database_id, delivery.target_id), Topic())
        return MemoryTarget(self, topic, delivery)


class MemoryTarget:
    def __init__(self, memory: Memory, topic: Topic, delivery: Delivery) -> None:
        self.memory, self.topic, self.delivery = memory, topic, delivery
        self.writer = 0

    def open(self, generation: int) -> SinkOffset | None:
        self.memory.fails("open")
        with self.memory.lock:
            topic = self.topic
            if topic.generation > generation:
                raise error("WRITER_FENCED", "a newer generation writes there")
            topic.writer += 1
            topic.opened += 1
            self.writer = topic.writer
            offset = topic.batches[-1].offset if topic.batches else None
        self.memory.fails("opened")
        return offset

    def deliver(self, batches) -> None:
        self.memory.fails("deliver")
        with self.memory.lock:
            if self.writer != self.topic.writer:
                raise error("WRITER_FENCED", "another writer was opened")
            for batch in batches:
                self._put(batch)
        self.memory.fails("delivered")

    def _put(self, batch: SinkBatch) -> None:
        assert batch.rows.num_rows == len(batch.diff) > 0
        assert batch.rows.column_names == [c.name for c in self.delivery.columns]
        assert batch.offset.generation == self.delivery.generation
        last = self.topic.batches[-1].offset if self.topic.batches else None
        if last is None or last.generation < batch.offset.generation:
            self.topic.generation = batch.offset.generation
            self.topic.batches = []
            assert batch.offset.rows == batch.rows.num_rows
        elif last.last:
            assert batch.offset.commit > last.commit
            assert batch.offset.rows == batch.rows.num_rows
        else:
            assert (batch.offset.commit, batch.offset.rows) == (last.commit, last.rows + batch.rows.num_rows)
        self.topic.batches.append(batch)

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self.memory.fails("close")


__all__ = ["Memory", "Topic", "Unavailable"]
