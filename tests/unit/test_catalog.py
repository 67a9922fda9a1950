"""The classes of relations, and their stored form."""

from __future__ import annotations

import json

import pytest

from watersmeet import catalog as c
from watersmeet.values.types import INTEGER, TIMESTAMP, Field
from watersmeet.values.watermarks import Term

COLUMNS = (Field("a", INTEGER), Field("at", TIMESTAMP, nullable=False))
TOPIC = c.Topic("INT", "AVRO", 3, ("a",), compacted=True)
OUTSIDE = c.External("mysql", "shop.p", {"host": "h"})
FOUND = c.Dictionary(ttl_us=7, stream="t9", fills=True)

RELATIONS = [
    c.Table("t1", "t", COLUMNS, primary_key=("a",), ranges={"a": (0, 255)}, known={"t9": c.Known("x", "s", ("y",))}),
    c.Stream("t2", "s", COLUMNS, mode="mutable", event_time=c.EventTime("at", 5, ordered=True), digits={"at": 3}),
    c.TopicTable("t3", "p", COLUMNS, topic=TOPIC),
    c.ExternalTable("t4", "e", COLUMNS, external=OUTSIDE),
    c.DictionaryTable("t5", "d", COLUMNS, external=OUTSIDE, dictionary=FOUND, primary_key=("a",)),
    c.AddressRanges("t7", "d", COLUMNS, external=OUTSIDE, dictionary=FOUND, hidden=True, owner="t5", networks=("a",)),
    c.CapturedTable("t6", "ct", COLUMNS, captured=c.Captured("s5", "public", "t", 1, {"x": "23"}), primary_key=("a",)),
    c.WebhookTable("t16", "wt", COLUMNS, options={"is_batched": "true"}),
    c.ReceivedTable("t17", "rt", COLUMNS, options={"connector": "mqtt"}),
    c.ReceivedSource("s18", "rs", COLUMNS, options={"connector": "mqtt"}),
    c.Source("s1", "o", COLUMNS, append_only=True, connector={"connector": "file"}),
    c.QuerySource("s3", "o", COLUMNS, hidden=True, owner="m1", of="s1", start="earliest", shards="0,2"),
    c.LateRows("l19", "?late", COLUMNS, owner="s1", hidden=True, dropped=("b",)),
    c.CapturedDatabase("s5", "cd", (), connector={"hostname": "h"}, start="0/7"),
    c.View("v1", "v", COLUMNS, sql="CREATE VIEW v", path=("s", "public")),
    c.ExternalView("v2", "ev", COLUMNS, external=OUTSIDE, query="CREATE VIEW content"),
    c.DictionaryView("v3", "dv", COLUMNS, dictionary=FOUND, query="CREATE VIEW content"),
    c.StoppedPump("v4", "sp", COLUMNS, feeds="t2"),
    c.MaterializedView("m1", "m", COLUMNS, watermarks={"at": (Term("t1"),)}, most_join_rows=9, ready=False),
    c.Pump("m2", "pu", COLUMNS, feeds="t2"),
    c.Processor("m3", "pr", COLUMNS, topic=TOPIC),
    c.TopicWriter("m8", "p", COLUMNS, feeds="t3"),
    c.Query("m4", "query 1", COLUMNS, hidden=True),
    c.Subscription("m6", "q", COLUMNS, hidden=True, subscribed_us=7),
    c.CacheFill("m5", "?m.d.0", COLUMNS, owner="m1", feeds="t2", hidden=True),
    c.Index("i1", "i", COLUMNS, index_columns=("a",), included=("at",), depends_on=("t1",)),
    c.Sink("s2", "k", COLUMNS, delivers="m1", connector={"connector": "kafka"}, target_id="s1", generation=2),
    c.SinkQuery("m7", "?k", COLUMNS, owner="s2", hidden=True),
    c.SinkConflicts("m9", "?k.conflicts", COLUMNS, owner="s2", hidden=True),
    c.PausedQuery("m8", "?m", COLUMNS, owner="m1", hidden=True),
    c.Server("s5", "sv", (), adapter="KAFKA10", options={"TOPIC": "t"}),
    c.Connection("s6", "co", (), type="kafka", options={"properties.bootstrap.server": "h:1"}),
    c.FormatSchema("s7", "fs", (), type="avro", text='{"type": "int"}'),
    c.NamedCollection("s8", "nc", (), settings={"brokers": "h:1"}, fixed=("brokers",)),
    c.NamedSubscription("s9", "su", (), depends_on=("t1",), retention_us=1_000_000, begun=4),
    c.NumberSequence("s10", "nu", (), numbers=c.Numbering("integer", 5, -1, greatest=7), owned=("t1", "a")),
    c.EnumType("t11", "mo", (), labels=("sad", "ok")),
    c.DomainType("t12", "po", (), base=INTEGER, base_text="int", rules=c.Domain("po", nullable=False)),
]


def test_each_kind_is_here():
    assert [type(r) for r in RELATIONS] == list(c.KINDS)


@pytest.mark.parametrize("kind", c.KINDS, ids=lambda k: k.entry)
def test_a_kind_has_its_words(kind):
    words = kind.words
    assert words.what and words.role
    assert kind.family in c.FAMILIES
    assert issubclass(kind, c.View | c.MaterializedView) == kind.family.endswith("view")
    assert bool(words.show) == bool(words.show_create) == bool(words.drop)
    assert "words" in vars(kind), "the words of another kind would be taken for its own"


@pytest.mark.parametrize("relation", [r for r in RELATIONS if r.columns], ids=lambda r: r.entry)
def test_names_of_columns_are_renamed_wherever_they_are(relation):
    renamed = relation.renamed(("b", "time"))
    assert [f.name for f in renamed.columns] == ["b", "time"]
    texts = json.dumps(c.Catalog(relations={relation.id: renamed}).to_json()["relations"][0])
    before = json.dumps(c.Catalog(relations={relation.id: relation}).to_json()["relations"][0])
    assert before.count('"a"') and texts.count('"a"') == 1, "what it was called first"
    assert texts.count('"b"') >= before.count('"a"')


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.entry)
def test_a_stored_relation_is_read_as_what_it_was(relation):
    stored = json.loads(json.dumps(c.Catalog(relations={relation.id: relation}).to_json()))
    found = c.Catalog.from_json(stored).relations[relation.id]
    assert type(found) is type(relation)
    assert found == relation


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.entry)
def test_a_relation_says_nothing_of_what_others_have(relation):
    own = {f for f in type(relation).__dataclass_fields__}
    others = {"topic": None, "mode": None, "external": None, "dictionary": None, "owner": "", "connector": {}}
    for name, nothing in others.items():
        if name not in own:
            assert getattr(relation, name) == nothing


def test_a_pump_that_is_stopped_keeps_what_it_was():
    pump = c.Pump("m2", "pu", COLUMNS, feeds="t2", sql="CREATE PUMP", watermarks={"at": (Term("t1"),)})
    stopped = c.turned_into(c.StoppedPump, pump, id="v7")
    assert (stopped.family, stopped.what, stopped.feeds, stopped.sql, stopped.watermarks) == (
        "view",
        "pump",
        "t2",
        "CREATE PUMP",
        {},
    )


def test_what_is_not_the_form_of_a_relation_is_refused():
    stored = c.Catalog(relations={"t1": RELATIONS[0]}).to_json()
    stored["relations"][0]["feeds"] = "t2"
    with pytest.raises(ValueError, match="not the JSON form"):
        c.Catalog.from_json(stored)
