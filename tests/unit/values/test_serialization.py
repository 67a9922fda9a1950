"""The JSON form of frozen dataclasses: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from tests.reference import columns

from watersmeet.circuit.operators import (
    Aggregate,
    AggregateSpec,
    ArrivalJoin,
    Join,
    Operator,
    Scan,
    SortKey,
    TimeFilter,
    Window,
    WindowFrame,
    WindowSpec,
)
from watersmeet.store.manifests import RelationChange, RelationTotals
from watersmeet.system.blobs import BlobRef
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BIGINT, Field, SqlType
from watersmeet.values.watermarks import MonthStep, Step, Term

SCHEMA = (Field("c0", BIGINT, nullable=False), Field("c1", SqlType("array", element=SqlType("numeric", 9, 2))))
BOUND = (Term("a", (Step("add", -5), MonthStep("add_months", 1), Step("floor", 10, 3))), Term("b"))
OPERATORS = [
    Scan((), SCHEMA, True, "t1", ("a", "b"), ordered=True),
    TimeFilter(("i",), SCHEMA, True, 0, "<", BOUND, (0, 1), stays=True),
    Join(("l", "r"), SCHEMA, True, "inner", (0,), (1,), (False,), None, columns("l0", "r1")),
    ArrivalJoin(("l", "r"), SCHEMA, True, "left", (0,), (1,), (True,), "l0 > r0", columns("l0", "r1")),
    Aggregate(
        ("i",),
        SCHEMA,
        False,
        (0,),
        (
            AggregateSpec("string_agg", 1, None, True, (), (SortKey(1, True), SortKey(0)), ", "),
            AggregateSpec("percentile_cont", 1, 0, False, (), (), 0.5),
        ),
    ),
    Window(
        ("i",), SCHEMA, False, (0,), (WindowSpec("lag", (1,), 2, None, (SortKey(0),), WindowFrame("rows", -2, None)),)
    ),
]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.kind)
def test_an_operator_is_read_as_it_was_written(op):
    value = to_json(op)
    assert value["kind"] == op.kind
    again = from_json(Operator, json.loads(json.dumps(value)))
    assert again == op
    assert type(again) is type(op)
    assert again.id == op.id
    assert from_json(tuple[Operator, ...], to_json((op, op))) == (op, op)


def test_what_has_its_default_is_left_out():
    assert to_json(Term("a")) == {"source": "a"}
    assert to_json(SortKey(3, nulls_first=True)) == {"column": 3, "nulls_first": True}


def test_what_has_a_form_of_its_own_keeps_it():
    assert to_json(OPERATORS[0])["schema"] == [["c0", "bigint", False], ["c1", ["array", ["numeric", 9, 2]], True]]


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("column"),
        lambda value: value.update(columns=1),
        lambda value: value.update(kind="timefilters"),
        lambda value: value.pop("kind"),
        lambda value: value.update(comparison="=<"),
        lambda value: value.update(bound=[{"source": "a", "steps": [{"kind": "add", "months": 1}]}]),
        lambda value: value.update(keep=["first"]),
        lambda value: value.update(schema=None),
    ],
)
def test_what_is_no_form_of_the_class_is_refused(change):
    value = to_json(OPERATORS[1])
    change(value)
    with pytest.raises(ValueError, match="not the JSON form of Operator"):
        from_json(Operator, value)


def test_a_tuple_with_names_is_a_list():
    blob = BlobRef("a.segment", 64, 10, 3)
    assert to_json(blob) == ["a.segment", 64, 10, 3]
    assert from_json(BlobRef, ["a.segment", 64, 10, 3]) == blob
    change = RelationChange((blob, blob), 2, 1)
    assert to_json(change) == [[["a.segment", 64, 10, 3]] * 2, 2, 1]
    again = from_json(RelationChange, to_json(change))
    assert again == change
    assert type(again.blobs[0]) is BlobRef


@pytest.mark.parametrize("value", [["a", 1, 2], ["a", 1, 2, 3, 4], ["a", 1, 2, "x"], ["a", 1, 2, None], 3, None])
def test_what_has_another_length_or_other_types_is_no_tuple_with_names(value):
    with pytest.raises(ValueError, match="not the JSON form of BlobRef"):
        from_json(BlobRef, value)


def test_last_fields_with_a_default_may_be_missing():
    """As in the totals of relations that earlier releases stored."""
    assert from_json(RelationTotals, [1, 2, 3]) == RelationTotals(1, 2, 3)
    with pytest.raises(ValueError, match="JSON form"):
        from_json(RelationTotals, [0] * (len(RelationTotals._fields) + 1))


def test_two_kinds_of_operators_have_two_names():
    with pytest.raises(AssertionError, match="two kinds of operators are called join"):

        @dataclass(frozen=True)
        class Another(Operator):
            kind = "join"
