"""The generated pages of the reference: complete, and what `python -m scripts.reference` writes."""

from __future__ import annotations

import pytest
from scripts import reference
from scripts import referencetexts as texts

_FUNCTIONS = "reference/functions"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == _FUNCTIONS else name for name in reference.PAGES]
)
def test_the_page_is_what_the_code_gives(name):
    """Otherwise run `python -m scripts.reference`."""
    assert reference.path_of(name).read_text(encoding="utf-8") == reference.PAGES[name]()


def test_every_function_has_an_example():
    assert reference.functions_without_example() == set()
    page = reference.path_of(_FUNCTIONS).read_text(encoding="utf-8")
    assert [e for e in reference.examples_of_the_page() if reference.code(e) not in page] == []


def test_every_list_of_show_has_a_meaning():
    assert reference.shown_without_meaning() == set()


def test_every_environment_variable_has_a_meaning():
    assert set(texts.ENVIRONMENT) == reference.variables_of_the_code()


def test_every_connector_is_on_one_page():
    named = [name for _, names, _ in texts.CONNECTORS.values() for name in names]
    known = {name for names, _, options in reference.option_sets() if options.shown for name in names.split(", ")}
    built_in = {name for name in known if name != "nexmark"}
    assert len(named) == len(set(named))
    assert set(named) == built_in


def test_no_text_is_of_a_statement_that_does_not_exist():
    known = set().union(*(reference.statements_of(name) for name in ("risingwave", "sqlstream", "timeplus", "lenses")))
    assert set(texts.STATEMENTS) == known
