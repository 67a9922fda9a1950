"""Whatever becomes of a topic of a real broker, and however reading is cut: views have what its messages say, and
messages read + messages set aside = messages.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import watersmeet
from tests.messages_reference import Reference, Row, UnreadableError
from tests.property.test_messages import Case, shown
from tests.thorough import mostly_slow
from watersmeet.catalog import MessageFormat
from watersmeet.runtime.workers import Budget
from watersmeet.values.types import Field, SqlType

#: 0: FLUSH did not see the messages of a partition that was just added.
#: 260200587: a transaction of old partitions was open while one was added, so that those of a key were in no order.
REGRESSIONS: Final = [260200587]
SEEDS: Final = mostly_slow([0, 1, *REGRESSIONS, *range(2, 40)], 0, 3)
STEPS: Final = 14
#: No schema of a registry has this number.
NO_SCHEMA: Final = (0x7FFFFFFF).to_bytes(4, "big")

Place = tuple[int, int]


@dataclass(frozen=True)
class Record:
    """A message that a reader of committed messages sees."""

    key: bytes | None
    value: bytes | None


def type_text(kind: SqlType) -> str:
    """A type in RisingWave's words."""
    if kind.name == "struct":
        return "struct<" + ", ".join(f"{name} {type_text(part)}" for name, part in kind.fields) + ">"
    if kind.element is not None:
        return f"{type_text(kind.element)}[]"
    return kind.name


class Messages:
    """What is written to a topic, and the plain model of what a table or source has of it."""

    def __init__(self, seed: int) -> None:
        while (case := Case(seed)).encoding not in ("json", "avro", "csv", "bytes"):
            seed += 1000
        self.rnd = random.Random(seed)
        self.case = case
        self.rows = case.rows
        if case.encoding == "avro" and self.rnd.random() < 0.5:
            self.rows = "upsert"
        plain = {"numeric": SqlType("numeric", 38, 10)}
        case.fields = self.fields = tuple(Field(f.name, plain.get(f.type.name, f.type)) for f in case.fields)
        self.key = case.key if self.rows == "debezium" else ()
        encoding, keyed = case.encoding, "json" if self.rows == "debezium" else None
        form = MessageFormat(
            "debezium" if self.rows == "debezium" else "plain", encoding, keyed, {}, "null", encoding == "json"
        )
        self.reference = Reference(self.fields, self.key, form, case.schema)
        self.schema_id = b""
        self.content: Counter[str] | dict[str, dict[str, Any]] = Counter() if self.rows == "plain" else {}
        self.dead: set[Place] = set()

    def produced(self) -> Record:
        """A new message."""
        case, rnd = self.case, self.rnd
        key = case.a_key(rnd) if self.rows == "debezium" else rnd.choice([None, b"", b"a", b"b", b"c", b"d", b"e"])
        value = None if rnd.random() < 0.05 else case.a_value(rnd)
        if case.encoding == "avro" and value:
            start = rnd.choice([b"\0" + NO_SCHEMA, b"\1" + self.schema_id, b""]) if rnd.random() < 0.05 else None
            value = (b"\0" + self.schema_id if start is None else start) + value
        return Record(key, value)

    def said(self, record: Record) -> list[Row]:
        """The rows of a message. Raises UnreadableError."""
        value = record.value
        if self.rows == "upsert":
            if record.key is None:
                raise UnreadableError
            if not value:
                return [Row(-1, {"k": record.key})]
        if self.case.encoding == "avro" and value is not None:
            if value[:5] != b"\0" + self.schema_id:
                raise UnreadableError
            value = value[5:]
        found = self.reference.decode(record.key, value)
        if self.rows != "upsert":
            return found
        if len(found) != 1:
            raise UnreadableError
        return [Row(1, {**found[0].values, "k": record.key})]

    def read(self, place: Place, record: Record) -> None:
        """The model takes a message."""
        try:
            found = self.said(record)
        except UnreadableError:
            self.dead.add(place)
            return
        key = ("k",) if self.rows == "upsert" else self.key
        for row in found:
            if isinstance(self.content, Counter):
                self.content[shown(row.values)] += 1
                continue
            name = shown({column: row.values[column] for column in key})
            if row.diff < 0:
                self.content.pop(name, None)
                if row.kept is not None:
                    self.content.clear()
            elif row.kept is not None and name not in self.content:
                self.dead.add(place)
            else:
                self.content[name] = row.values | {column: self.content[name][column] for column in row.kept or ()}

    def listed(self) -> list[str]:
        """The rows of the model as text, in order."""
        if isinstance(self.content, Counter):
            return sorted(self.content.elements())
        return sorted(map(shown, self.content.values()))


def register(registry: Any, subject: str, schema: Any) -> bytes:
    """The id of the schema, as it stands in messages."""
    request = urllib.request.Request(
        f"{registry.url}/subjects/{subject}/versions",
        json.dumps({"schema": json.dumps(schema)}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request) as answer:
        number: int = json.load(answer)["id"]
    return number.to_bytes(4, "big")


class History:
    """A topic and a database that reads it, from a seed."""

    def __init__(self, seed: int, path: Any, broker: Any, make_topic: Any, registry: Any) -> None:
        self.messages, self.path, self.broker, self.registry = Messages(seed), path, broker, registry
        self.rnd = self.messages.rnd
        self.partitions = 1 if self.messages.rows == "debezium" else self.rnd.choice([1, 2, 3])
        self.oldest = 0
        self.topic = make_topic(self.partitions, retention_ms=-1, segment_ms=100, min_cleanable_dirty_ratio="0.01")
        if self.messages.case.encoding == "avro":
            self.messages.schema_id = register(registry(), f"{self.topic}-value", self.messages.case.schema)
        self.read_to: dict[int, int] = {}
        self.count = 0
        self.open_transaction: Any = None
        self.producer = broker.producer()
        self.consumer = broker.consumer(
            **{"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 5}
        )
        self.idle: list[Any] = []

    def send(self, producer: Any, count: int) -> None:
        """Messages to those partitions that take new ones: those of a key are in one partition, in order."""
        for _ in range(count):
            record = self.messages.produced()
            spread = self.partitions - self.oldest
            chosen = self.rnd.randrange(spread) if self.messages.rows == "plain" else sum(record.key or b"") % spread
            producer.produce(self.topic, record.value, key=record.key, partition=self.oldest + chosen)
        producer.flush(30)

    def transaction(self) -> Any:
        if self.idle:
            producer = self.idle.pop()
        else:
            producer = self.broker.producer(**{"transactional.id": f"{self.topic}-{self.rnd.random()}"})
            producer.init_transactions(30)
        producer.begin_transaction()
        self.send(producer, self.rnd.randrange(1, 20))
        return producer

    def end(self, producer: Any) -> None:
        if self.rnd.random() < 0.5:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def end_open(self) -> None:
        """Ends the transaction that is open, if one is."""
        if self.open_transaction is not None:
            self.end(self.open_transaction)
            self.open_transaction = None

    def there(self) -> tuple[dict[Place, Record], dict[int, int]]:
        """All messages that can be read now, and how far each partition can be read."""
        consumer = self.consumer
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(self.partitions)])
        found, ends = {}, {}
        while len(ends) < self.partitions:
            message = consumer.poll(30)
            assert message is not None
            place = (message.partition(), message.offset())
            if message.error() is None:
                found[place] = Record(message.key(), message.value())
            else:
                assert message.error().name() == "_PARTITION_EOF"
                ends[place[0]] = place[1]
        return found, ends

    def connect(self) -> None:
        self.connection = watersmeet.connect(self.path, runtime="inprocess", parallelism=2)

    def create(self, name: str) -> None:
        m = self.messages
        columns = [f"{f.name} {type_text(f.type)}" for f in m.fields]
        included = ""
        if m.rows == "upsert":
            columns.append("PRIMARY KEY (k)")
            included = "INCLUDE key AS k"
        elif m.key:
            columns.append(f"PRIMARY KEY ({', '.join(m.key)})")
        encoding = m.case.encoding.upper()
        if encoding == "AVRO":
            encoding += f" (schema.registry = '{self.registry().url}')"
        if encoding == "CSV":
            encoding += " (without_header = 'true')"
        if encoding == "BYTES":
            columns = ["v bytea"]
        self.connection.execute(
            f"""CREATE {"SOURCE" if m.rows == "plain" else "TABLE"} {name} ({", ".join(columns)}) {included}
                WITH (connector = 'kafka', topic = '{self.topic}',
                      properties.bootstrap.server = '{self.broker.bootstrap}')
                FORMAT {m.rows.upper()} ENCODE {encoding}"""
        )
        self.connection.execute(f"CREATE MATERIALIZED VIEW {name}_rows AS SELECT * FROM {name}")

    def reopen(self) -> None:
        self.connection.close()
        self.connect()

    def settle(self) -> None:
        """Brings views and model up to what is there."""
        until = time.monotonic() + 120
        while True:
            found, ends = self.there()
            self.connection.flush()
            if ends == self.there()[1]:
                break  # else: brokers write the ends of transactions after they said that they were over
            assert time.monotonic() < until
        for place, record in sorted(found.items()):
            if place[1] >= self.read_to.get(place[0], 0):
                self.count += 1
                self.messages.read(place, record)
        self.read_to = ends

    def rows_of(self, name: str) -> list[str]:
        return sorted(shown(row) for row in self.connection.execute(f"SELECT * FROM {name}").arrow().to_pylist())

    def dead(self, name: str) -> list[Place]:
        found = self.connection.execute(
            f"SELECT partition, \"offset\" FROM watersmeet.dead_letters WHERE source = '{name}'"
        )
        return sorted(found.fetchall())

    def check(self, name: str = "t", messages: Messages | None = None) -> None:
        model = messages or self.messages
        found, wanted = Counter(self.rows_of(f"{name}_rows")), Counter(model.listed())
        assert list((found - wanted).elements()) == list((wanted - found).elements())
        assert self.dead(name) == sorted(model.dead)

    def compact(self) -> None:
        """Lets the broker compact what is there, and at no other time.

        Clients fetch ahead: of messages that are not read by then nobody knows whether they will be.
        """
        self.settle()
        ends = self.read_to
        self.set_policy("compact")
        newest: dict[int, int] = {}
        for partition in range(self.partitions):
            # So much later, it begins a segment: what the newest one has is never compacted.
            self.producer.produce(
                self.topic,
                b"{}",
                key=b"newest",
                partition=partition,
                timestamp=time.time_ns() // 1_000_000 + 1000,
                on_delivery=lambda _, message: newest.update({message.partition(): message.offset()}),
            )
        self.producer.flush(60)
        until = time.monotonic() + 120
        while any(self.cleaned().get(p, 0) < newest[p] for p, end in ends.items() if end):
            assert time.monotonic() < until, (self.cleaned(), newest)
            time.sleep(0.1)
        self.set_policy("delete")
        keys = [(p, record.key) for (p, offset), record in self.there()[0].items() if offset < newest[p]]
        assert len(keys) == len(set(keys))

    def cleaned(self) -> dict[int, int]:
        """By partition, the offset up to which the broker has compacted the topic, as it notes."""
        noted = self.broker.folder / "data" / "cleaner-offset-checkpoint"
        lines = [line.split() for line in noted.read_text().splitlines()[2:]] if noted.exists() else []
        return {int(partition): int(offset) for topic, partition, offset in lines if topic == self.topic}

    def set_policy(self, policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        admin = self.broker.admin()
        admin.incremental_alter_configs([resource])[resource].result(30)

    def add_partition(self) -> None:
        """Messages go to the new partition from now on: two partitions are in no order."""
        if self.messages.rows != "plain":
            self.end_open()
        self.settle()
        self.broker.add_partitions(self.topic, self.partitions + 1)
        self.oldest, self.partitions = self.partitions, self.partitions + 1
        self.producer, self.idle = self.broker.producer(), []  # which know it

    def run(self) -> None:
        self.connect()
        if self.rnd.random() < 0.5:
            self.send(self.producer, self.rnd.randrange(20))
        self.create("t")
        self.settle()
        compacting, adding = (self.rnd.choice([None, *range(STEPS)]) for _ in range(2))
        for step in range(STEPS):
            choice = self.rnd.random()
            if choice < 0.5:
                self.send(self.producer, self.rnd.choice([1, 3, 30]))
            elif choice < 0.7:
                producer = self.transaction()
                self.end(producer)
                self.idle.append(producer)
            elif choice < 0.8 and self.open_transaction is None:
                self.open_transaction = self.transaction()
            else:
                self.end_open()
            if step == compacting and self.open_transaction is None:
                self.compact()
            if step == adding:
                self.add_partition()
            if self.rnd.random() < 0.3:
                self.settle()
                self.check()
            if self.rnd.random() < 0.15:
                self.reopen()
        self.end_open()
        self.settle()
        self.check()
        self.check_late()
        self.connection.close()
        self.consumer.close()

    def check_late(self) -> None:
        """A source or table that is made when all has happened reads what is left."""
        if self.oldest and self.messages.rows != "plain":
            return  # keys are in several partitions, which are in no order
        fresh = Messages.__new__(Messages)
        fresh.__dict__ |= self.messages.__dict__ | {"content": type(self.messages.content)(), "dead": set()}
        self.create("late")
        for place, record in sorted(self.there()[0].items()):
            fresh.read(place, record)
        self.connection.flush()
        self.check("late", fresh)


@pytest.mark.parametrize("seed", SEEDS)
def test_views_have_what_the_messages_of_a_topic_say(
    seed: int, tmp_path: Any, broker: Any, topic: Any, monkeypatch: Any, request: Any
) -> None:
    cuts = random.Random(seed)
    monkeypatch.setattr(Budget, "rows", property(lambda _: cuts.choice([1, 2, 7, 40, 1_000_000])))
    History(seed, tmp_path / "db", broker, topic, lambda: request.getfixturevalue("registry")).run()
