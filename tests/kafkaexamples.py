"""Examples in the dialect of Lenses with topics of a real broker: a consumer of its own reads what they say."""

from __future__ import annotations

import contextlib
import json
import re
import secrets

import pytest

import watersmeet
from tests.conditions import fulfils
from tests.kafkatopics import asked, delivered, read_avro, there
from watersmeet.errors import Error
from watersmeet.testing import difference, parse_file, written

#: Directives that say nothing about what is in topics.
SILENT = ("dialect", "at", "plan")


class Play:
    """One example, with topics of its own: each has a suffix that no other test has."""

    def __init__(self, script, connection, broker, registry):
        self.script, self.connection, self.broker, self.registry = script, connection, broker, registry
        texts = " ".join(r.sql for r in script.records)
        self.topics = set(re.findall(r"(?:CREATE TABLE|INSERT INTO)\s+(\w+)", texts))
        self.suffix = "_" + secrets.token_hex(4)
        self.started = {}
        self.watermarks = 0

    def own(self, text):
        names = "|".join(sorted(self.topics))
        return re.sub(rf"(?<![.\w])({names})\b", rf"\g<1>{self.suffix}", text)

    def run(self):
        for record in self.script.records:
            if record.directive not in SILENT:
                with self.at(record):
                    getattr(self, record.directive)(record)
            self.connection.execute("FLUSH")

    @contextlib.contextmanager
    def at(self, record):
        try:
            yield
        except Exception as problem:
            problem.add_note(f"{self.script.path}:{record.line}: {record.directive} {record.argument_text}")
            raise

    def statement(self, record):
        kind, *wanted = record.arguments
        if kind == "ok":
            self.connection.cursor().execute(self.own(record.sql)).close()
            return
        with pytest.raises(Error) as caught:
            self.connection.cursor().execute(self.own(record.sql))
        assert fulfils(" ".join(wanted), caught.value.condition), caught.value

    def insert(self, record):
        name, _, columns = record.argument_text.partition(" ")
        fields = ", ".join(f"`{c.strip()}`" for c in columns.strip("()").split(",")) if columns else ""
        values = ", ".join(f"({', '.join(map(self.value, line.split(' | ')))})" for line in record.body)
        self.write(name, fields, values)

    def value(self, text):
        return text if text.isdigit() else f"'{text}'"

    def write(self, name, fields, values):
        self.connection.execute(f"INSERT INTO {self.own(name)} {f'({fields})' if fields else ''} VALUES {values}")

    def watermark(self, record):
        """A record of that time, which matches nothing and whose own window does not end in the example."""
        name, *moment = record.arguments
        described = self.connection.execute(f"DESCRIBE TABLE {self.own(name)}").fetchall()
        fields = {r[0]: r[1] for r in described[: [r[0] for r in described].index("_meta.timestamp")]}
        self.watermarks += 1
        values = [str(-self.watermarks) if kind == "integer" else "'nobody'" for kind in fields.values()]
        self.write(name, ", ".join([*fields, "`@time`"]), f"({', '.join([*values, repr(' '.join(moment))])})")

    def start(self, record):
        self.started[record.arguments[0]] = (self.connection.start(self.own(record.sql)), {})

    def query(self, record):
        columns, topic = re.fullmatch(r"SELECT (.+) FROM (\w+);", record.sql).groups()
        self.compare(record, columns.split(", "), [value for _, value in self.consumed(topic)])

    def expect(self, record):
        name = record.arguments[0]
        if name not in self.started:
            newest = {str(key): value for key, value in self.consumed(name)}
            self.compare(record, record.columns, newest.values())
            return
        query, content = self.started[name]
        found, diff = query.take()
        for row, sign in zip(found.to_pylist(), diff.tolist(), strict=True):
            shown = tuple(row.items())
            content[shown] = content.get(shown, 0) + sign
        rows = [dict(row) for row, count in content.items() for _ in range(count)]
        self.compare(record, record.columns or [c.name for c in query.columns], rows)

    def schema(self, record):
        """What may be missing is a union with null in the registry. Others may be, too: anybody writes the topics."""
        found = json.loads(
            asked(self.registry, f"/subjects/{self.own(record.arguments[0])}-value/versions/latest")["schema"]
        )
        types = {f["name"]: f["type"] for f in found["fields"]}
        for name, kind in (line.split(" | ") for line in record.expected):
            assert types[name] == ["null", "string"] or not kind.startswith("union")

    def consumed(self, topic):
        delivered(self.connection)
        return [(key, read_avro(self.registry, value)) for _, key, value, _ in there(self.broker, self.own(topic))]

    def compare(self, record, columns, values):
        found = [v for v in values if v is not None]
        columns = columns or list(found[0]) if found else columns
        rows = [tuple(written(v[c]) for c in columns) for v in found]
        expected = [tuple(cell.strip() for cell in line.split(" | ")) for line in record.expected]
        assert difference(expected, rows) is None, difference(expected, rows)


def play(path, broker, registry, database, **options):
    """Runs the example in that directory, and deletes its topics."""
    where = {"bootstrap.servers": broker.bootstrap, "schema.registry.url": registry.url}
    with watersmeet.connect(database, dialect="lenses", kafka=where, **options) as connection:
        connection.execute("SET defaults.topic.retention.ms='-1'")  # the records are old
        played = Play(parse_file(path), connection, broker, registry)
        try:
            played.run()
        finally:
            admin = broker.admin()  # the futures end with it
            for future in admin.delete_topics([n + played.suffix for n in played.topics]).values():
                future.exception(30)
