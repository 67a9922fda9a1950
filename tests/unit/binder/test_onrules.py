"""What ON may say in Lenses' dialect. LS-12 to LS-16."""

from __future__ import annotations

import pytest
from sqlglot import exp

from watersmeet.algebra.scalars import column_ref
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import ScopeColumn, single
from watersmeet.binder.dialects import rules_of
from watersmeet.binder.dialects.lenses.record_joins import check_on
from watersmeet.catalog import Catalog
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.errors import Error
from watersmeet.expressions.context import Value
from watersmeet.values.types import INTEGER

LANGUAGE = language_named("risingwave")


def scope(alias, *names):
    return single(alias, [ScopeColumn(n, Value(column_ref(f"{alias}.{n}"), INTEGER, True)) for n in names])


def checked(condition):
    """(the condition as it is read, notices)"""
    text = f"SELECT 1 FROM c JOIN o ON {condition}"
    tree = read_tree(tokenize(text, LANGUAGE), text, LANGUAGE.grammar)
    binding = Binding(Catalog(), rules_of("risingwave"), rules_of)
    found, _ = check_on(
        tree.find(exp.Join).args["on"],
        scope("c", "id", "name", "key"),
        scope("o", "id", "user", "item"),
        Environment(text),
        binding,
    )
    return found.sql().replace('"', ""), binding.collected.notices


BY_KEY = "the join is by _key: nothing in ON equates both sources"


@pytest.mark.parametrize(
    "condition",
    [
        "c.id = o.user",
        "c.id - 1 = o.user - 1",
        "substr(c.name, 5) = o.item",
        "length(c.name) > 10",
        "length(c.name) > 10 OR c.key > 1",
        "c.key = o.user AND length(c.name) > 10",
        "c.id = 1 AND (o.user = 2 OR o.item > 3) AND c.id = o.id",
        "substr(c.name, 5) = o.item AND (length(c.name) > 10 OR c.key > 1)",
        "c.key > 1 AND c.id = 2 OR c.name = 3",
        "key = item",
    ],
)
def test_what_is_allowed_stays_as_it_is(condition):
    found, notices = checked(condition)
    parts = [part.strip("()").lower() for part in found.split(" AND ")]
    expected = condition.split(" AND ") if " OR " not in condition or "(" in condition else [condition]
    assert parts == [p.strip("()").lower() for p in expected] or found == f"({condition})"
    assert notices == ([] if " = o." in condition or "key = item" in condition else [BY_KEY])


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("c.id = o.id AND c.key > 1 OR c.name = 2", "c.id = o.id AND (c.key > 1 OR c.name = 2)"),
        (
            "c.id = o.id AND c.key > 1 OR c.name = 2 AND o.item = 1 OR o.user = 3",
            "c.id = o.id AND (c.key > 1 OR c.name = 2) AND (o.item = 1 OR o.user = 3)",
        ),
        (
            "(c.id = o.id AND c.key > 1 OR c.name = 2) AND o.item = 1",
            "c.id = o.id AND (c.key > 1 OR c.name = 2) AND o.item = 1",
        ),
    ],
)
def test_and_splits_before_or_where_only_that_keeps_the_rules(condition, read):
    found, notices = checked(condition)
    assert found == read
    assert len(notices) == 1
    assert "c.id = o.id AND (c.key > 1 OR c.name = 2)" in notices[0]


@pytest.mark.parametrize(
    ("condition", "kind", "place"),
    [
        ("c.name || o.item = 'John'", "ON_ONE_SIDE", "c.name || o.item"),
        ("c.key - o.user = 0", "ON_ONE_SIDE", "c.key - o.user"),
        ("c.id = o.id AND c.key = c.id + o.user", "ON_ONE_SIDE", "c.id + o.user"),
        ("c.key = 1 OR c.key = o.user", "ON_NOT_SPLIT", "c.key = 1 OR c.key = o.user"),
        ("c.id = o.id AND c.key > o.user", "ON_NOT_SPLIT", "c.key > o.user"),
        ("c.id = o.id OR c.key > 1 AND o.user > 2", "ON_NOT_SPLIT", "c.id = o.id OR c.key > 1 AND o.user > 2"),
        ("NOT c.id = o.id", "ON_NOT_SPLIT", "NOT c.id = o.id"),
        ("c.id <> o.id", "ON_NOT_SPLIT", "c.id <> o.id"),
        ("c.id IS NOT DISTINCT FROM o.id", "ON_NOT_SPLIT", "c.id IS NOT DISTINCT FROM o.id"),
        ("c.id = x.id", "UNDEFINED_RELATION", "x"),
        ("id = user", "AMBIGUOUS_COLUMN", "id"),
    ],
)
def test_what_breaks_the_rules_is_shown(condition, kind, place):
    with pytest.raises(Error) as failure:
        checked(condition)
    err = failure.value
    assert err.condition == kind
    assert err.sql is not None
    assert place.endswith(err.sql[err.span.start : err.span.end].lstrip("NOT "))
    if kind.startswith("ON_"):
        assert "reads c and o" in err.detail
        assert "one source on each side" in err.hint
