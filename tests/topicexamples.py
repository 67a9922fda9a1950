"""Examples in the dialects of RisingWave and Timeplus whose append-only inputs are topics of a real broker."""

from __future__ import annotations

import calendar
import json
import re
import time

import pytest

import watersmeet
from tests.conditions import fulfils
from watersmeet.errors import Error
from watersmeet.testing import difference, parse_file, written

#: Directives that say nothing about what comes from topics.
SILENT = ("dialect", "at", "plan", "state")


class Play:
    """One example. Each relation that records are inserted into is a source over a topic of its own."""

    def __init__(self, script, connection, broker, topic):
        self.script, self.connection, self.broker = script, connection, broker
        (self.dialect,) = [r.arguments[0] for r in script.records if r.directive == "dialect"]
        inserted = {r.argument_text.partition(" ")[0] for r in script.records if r.directive == "insert"}
        self.topics = {name: topic(retention_ms=-1) for name in inserted}  # the records are old
        self.columns, self.started = {}, {}

    def run(self):
        self.connection.execute(f"SET dialect = '{self.dialect}'")
        for record in self.script.records:
            if record.directive not in SILENT:
                try:
                    getattr(self, record.directive)(record)
                except Exception as problem:
                    problem.add_note(f"{self.script.path}:{record.line}: {record.directive} {record.argument_text}")
                    raise

    def statement(self, record):
        kind, *wanted = record.arguments
        if kind != "ok":
            with pytest.raises(Error) as caught:
                self.connection.execute(record.sql)
            assert fulfils(" ".join(wanted), caught.value.condition), caught.value
            return
        made = re.match(r"CREATE (?:TABLE|SOURCE|STREAM) (\w+)\s*\(", record.sql)
        text = record.sql
        if made and made.group(1) in self.topics:
            text = self.over_topic(text.rstrip().rstrip(";"), made.group(1))
        self.connection.execute(text)

    def over_topic(self, text, name):
        servers, topic = self.broker.bootstrap, self.topics[name]
        if self.dialect == "timeplus":
            assert "SETTINGS" not in text, text
            text = text.replace("CREATE STREAM", "CREATE EXTERNAL STREAM")
            return f"{text} SETTINGS type='kafka', brokers='{servers}', topic='{topic}', data_format='JSONEachRow'"
        text = re.sub(r"\)\s*WITH \(connector = 'datagen'\)", ")", text)
        assert "WITH" not in text, text
        return (
            f"{text} WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{servers}') "
            "FORMAT PLAIN ENCODE JSON"
        )

    def insert(self, record):
        name, _, listed = record.argument_text.partition(" ")
        shown = "TABLE " if self.dialect == "risingwave" else ""
        described = [tuple(r[:2]) for r in self.connection.execute(f"DESCRIBE {shown}{name}").fetchall()]
        types = dict(described)
        names = [n.strip() for n in listed.strip("()").split(",")] if listed else [n for n, _ in described]
        names = names[: len(record.body[0].split(" | "))]
        producer = self.broker.producer()
        for line in record.body:
            cells = dict(zip(names, line.split(" | "), strict=True))
            moment = cells.pop("_tp_time", None)
            value = {n: self.value(cell.strip(), types[n]) for n, cell in cells.items()}
            given = {} if moment is None else {"timestamp": milliseconds(moment)}
            producer.produce(self.topics[name], json.dumps(value).encode(), partition=0, **given)
        assert producer.flush(30) == 0
        self.connection.execute("FLUSH")

    def value(self, text, kind):
        if text == "NULL":
            return None
        return int(text) if kind in ("integer", "bigint", "int32", "int64", "int") else text

    def start(self, record):
        self.started[record.arguments[0]] = (self.connection.start(record.sql), {})

    def query(self, record):
        rows = [tuple(map(written, row)) for row in self.connection.execute(record.sql).fetchall()]
        self.compare(record, rows)

    def expect(self, record):
        name, *options = record.arguments
        query, content = self.started[name]
        if "since" in options:
            content.clear()
        found, diff = query.take()
        names = [c.name for c in query.columns]
        columns = [c if c in names else c.rpartition(".")[2] for c in record.columns or names]
        for row, sign in zip(found.to_pylist(), diff.tolist(), strict=True):
            shown = tuple(written(row[c]) for c in columns)
            content[shown] = content.get(shown, 0) + sign
        self.compare(record, [row for row, count in content.items() for _ in range(count)])

    def compare(self, record, rows):
        expected = [tuple(cell.strip() for cell in line.split(" | ")) for line in record.expected]
        assert difference(expected, rows) is None, difference(expected, rows)


def milliseconds(moment):
    """Of a text such as 2024-01-01 10:00:00, in UTC."""
    return calendar.timegm(time.strptime(moment.strip(), "%Y-%m-%d %H:%M:%S")) * 1000


def play(path, broker, topic, database, **options):
    """Runs the example in that directory."""
    with watersmeet.connect(database, **options) as connection:
        Play(parse_file(path), connection, broker, topic).run()
