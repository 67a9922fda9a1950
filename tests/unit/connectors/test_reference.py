"""Every connector declares its options: the pages, SHOW CONNECTORS and what is secret follow from that."""

import importlib
import pkgutil

import pytest

import watersmeet
from watersmeet import connectors
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.reference import option_sets, rows
from watersmeet.connectors.registry import READERS, SINKS, SOURCES, SYSTEMS, TABLES
from watersmeet.errors import Error
from watersmeet.errors.secretnames import is_secret


def test_every_connector_declares_its_options():
    known = {(name, use) for name, use, _ in option_sets()}
    assert {(name, "source") for name in SOURCES} <= known
    assert {(name, "sink") for name in SINKS if name not in ("rotating_file", "memory")}  # memory: of tests <= known
    assert {(name, "captured database") for name in SYSTEMS} <= known
    assert {(name, "external table") for name in TABLES if name != "file"} <= known


def test_the_registry_names_the_connectors_of_all_modules():
    """The registry imports a module when one of its names is used, so it repeats the names."""
    modules = [
        importlib.import_module(m.name) for m in pkgutil.walk_packages(connectors.__path__, "watersmeet.connectors.")
    ]
    for table, known in (("SOURCES", SOURCES), ("SINKS", SINKS), ("TABLES", TABLES), ("CAPTURES", SYSTEMS)):
        own = [m for m in modules if vars(m).get(table, known) is not known]
        assert own
        named = {name: found for m in own for name, found in vars(m)[table].items()}
        assert {*known._modules} == {*named}  # other tests have added further ones
        assert all(known[name] is found for name, found in named.items())
    assert {kind: SOURCES[name].spec.kind for kind, name in READERS.items()} == {kind: kind for kind in READERS}
    assert {c.spec.kind for c in SOURCES.values()} == {*READERS}
    readers = {c.spec: c.read for c in SOURCES.values()}
    assert all(c.read is readers[c.spec] for c in SOURCES.values())


def test_the_names_of_secret_options_say_so():
    """Messages and SHOW CREATE conceal values by the names of options, before anything has read them."""
    specs = [s for _, _, known in option_sets() for s in known.specs if s.kind != "flag"]
    declared = {(n, s.secret) for s in specs for n in s.names}
    assert {(n, secret) for n, secret in declared if is_secret(n, "") != secret} == set()
    with pytest.raises(ValueError, match="secret"):
        OptionSpec("hush", "What nobody may see.", secret=True)


def test_each_option_has_one_sentence_and_one_meaning():
    for _, _, known in option_sets():
        names = [n for s in known.specs for n in s.names]
        assert len(names) == len(set(names))
        assert all(s.doc.endswith((".", "`.")) and len(s.doc) < 120 for s in known.specs)


def test_options_are_read_as_declared():
    known = OptionSet(
        "test",
        (
            OptionSpec("rate", "Rows per second.", "integer", aliases=("pace",), default=3, minimum=1, maximum=9),
            OptionSpec("mode", "What happens.", "choice", among=("a", "b"), default="a"),
            OptionSpec("big", "Whether it is big.", "flag"),
            OptionSpec("more.", "Others.", "prefix"),
        ),
    )
    read = known.read({"connector": "test", "pace": "5", "mode": "B", "big": "on", "more.x": "y"})
    assert (read.number("rate"), read.choice("mode"), read.flag("big")) == (5, "b", True)
    assert read.under("more.") == {"x": "y"}
    assert known.read({}).number("rate") == 3
    wrong_rates = ({"rate": "0"}, {"rate": "10"}, {"rate": "x"}, {"rate": "1", "pace": "2"})
    for wrong in (*wrong_rates, {"mode": "c"}, {"big": "2"}):
        with pytest.raises(Error) as found:
            known.read(wrong).check()
        assert found.value.condition == "CONNECTOR_OPTION"
    with pytest.raises(Error, match='connector test has no option "rat"') as found:
        known.read({"rat": "1"})
    assert '"rate"' in found.value.hint


def test_show_connectors_lists_all_options(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.execute("SHOW CONNECTORS")
        assert [c[0] for c in cursor.description] == [
            "Connector", "Use", "Option", "Type", "Default", "Secret", "Description",
        ]  # fmt: skip
        found = cursor.fetchall()
        assert found == rows()
        some = connection.execute("SHOW CONNECTORS LIKE 'kafka'").fetchall()
        assert some == [r for r in found if r[0] == "kafka"]
