"""Writes the pages of docs/reference from the code. With `--check`: status 1 if a page is not up to date.

Names, types, options and results are the code's; meanings are in `referencetexts.py`, examples in
`functionexamples.py`. A name without a meaning or an example is a KeyError.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from scripts import dialectcoverage
from scripts import functionexamples as examples
from scripts import referencetexts as texts
from typer.main import get_command

import watersmeet
from watersmeet.cli.commands import app
from watersmeet.connectors.base.options import OptionSpec
from watersmeet.connectors.reference import default_of, option_sets, type_of
from watersmeet.connectors.registry import BUILT_IN
from watersmeet.dialects import registry, script
from watersmeet.dialects.statements import utility
from watersmeet.dialects.timeplus import functions as timeplus
from watersmeet.expressions import functions, setfunctions
from watersmeet.server.web.metrics import FAMILIES, PREFIX

ROOT: Final = Path(__file__).parents[1]
_WRITTEN: Final = "`python -m scripts.reference` writes this page from the code."
_TITLES: Final = {"risingwave": "RW", "sqlstream": "SS", "timeplus": "TP", "lenses": "LS"}


def table(names: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [names, tuple("---" for _ in names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    """Text as code in a cell of a table."""
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", "\\|") if text else "(empty)"


def groups(text: str) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each group of examples."""
    for part in re.split(r"^# ", "\n" + text.strip(), flags=re.MULTILINE):
        title, _, rest = part.partition("\n")
        if rest.strip():
            yield title, rest.strip().splitlines()


def function_of(example: str) -> str:
    """The function that an example shows: its first word."""
    return re.match(r"\w+", example)[0].lower()  # type: ignore[index]


def shown(value: Any) -> str:
    """A result as psql shows it, with 12 digits: the last ones of a double depend on the machine."""
    text = re.sub(r"-?\d+\.\d{13,}", lambda m: f"{float(m[0]):.12g}", str(value))
    return "NULL" if value is None else code(text)


def functions_page() -> str:
    """SQL functions: an example of each, and its result."""
    with watersmeet.connect(runtime="inprocess") as connection:
        run = connection.execute
        run("CREATE TABLE t (x int, y varchar); CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
        aggregates = examples.AGGREGATES.strip().splitlines()
        items = ", ".join(f"CAST({e} AS varchar) AS c{i}" for i, e in enumerate(aggregates))
        run(f"CREATE MATERIALIZED VIEW v AS SELECT {items} FROM t; INSERT INTO t VALUES {examples.ROWS}; FLUSH")
        common = _results(run, examples.COMMON, "CAST({} AS varchar)")
        sets = [
            (code(e), "; ".join(code(", ".join(map(str, row))) for row in run(f"SELECT * FROM {e} AS s").fetchall()))
            for e in examples.SETS.strip().splitlines()
        ]
        grouped = _rows(aggregates, run("SELECT * FROM v").fetchall()[0])
        run("SET dialect = 'timeplus'; CREATE STREAM s (x nullable(int32), y string)")
        run(f"INSERT INTO s (x, y) VALUES {examples.ROWS}; FLUSH")
        own = _results(run, examples.TIMEPLUS, "to_string({})")
        lines = examples.TIMEPLUS_AGGREGATES.strip().splitlines()
        own_items = ", ".join(f"to_string({e}) AS c{i}" for i, e in enumerate(lines))
        own_grouped = _rows(lines, run(f"SELECT {own_items} FROM table(s)").fetchall()[0])
    heads = ("example", "result")
    clocks, roles, own_clocks = (
        ", ".join(map(code, t.strip().splitlines()))
        for t in (examples.CLOCKS, examples.ROLES, examples.TIMEPLUS_CLOCKS)
    )
    return (
        "# SQL functions\n\nWhich functions exist, and what do they return? Each example runs as shown. "
        f"[Operators](../dialects/risingwave.md#functions) are on the page of the dialect. {_WRITTEN}\n\n"
        "RisingWave's functions are PostgreSQL's. SQLstream's and Lenses' queries have them as well. "
        "Those of [Timeplus](#timeplus) follow ClickHouse's rules.\n"
        + "".join(f"\n## {title}\n{table(heads, rows)}" for title, rows in common)
        + f"\n## Several rows\nIn FROM or in the select list. A semicolon separates rows.\n\n{table(heads, sets)}"
        + f"\n## Aggregates\nOver the rows `{examples.ROWS}` of `t (x int, y varchar)`.\n\n{table(heads, grouped)}"
        + "\n## Clock\nIn batch queries; the current time also in views, as a bound of a [filter on time]"
        f"(../SEMANTICS.md#the-clock-now-in-views): {clocks}.\n"
        f"\n## Roles\nThe roles of the session, in batch queries only: {roles}.\n"
        "\n## Timeplus\nTimeplus has these functions, and those above whose names are not in its own groups.\n"
        + "".join(f"\n### {title} of Timeplus\n{table(heads, rows)}" for title, rows in own)
        + "\n### Aggregates of Timeplus\nOver the same rows, in the order of their insertion.\n\n"
        + table(heads, own_grouped)
        + f"\nBy the clock, the machine, the kind of change, or of several rows: {own_clocks}.\n"
    )


def _rows(lines: list[str], values: tuple[Any, ...]) -> list[tuple[str, ...]]:
    return [(code(e), shown(v)) for e, v in zip(lines, values, strict=True)]


def _results(run: Callable[[str], Any], text: str, form: str) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """By group, each example with its result: one query for all of a group."""
    found = []
    for title, lines in groups(text):
        items = ", ".join(f"{form.format(e)} AS c{i}" for i, e in enumerate(lines))
        found.append((title, _rows(lines, run(f"SELECT {items}").fetchall()[0])))
    return iter(found)


_COMMON: Final = (examples.COMMON, examples.SETS, examples.AGGREGATES, examples.CLOCKS, examples.ROLES)
_OWN: Final = (examples.TIMEPLUS, examples.TIMEPLUS_AGGREGATES, examples.TIMEPLUS_CLOCKS)


def examples_of_the_page(parts: tuple[str, ...] = (*_COMMON, *_OWN)) -> list[str]:
    """The examples without the titles of their groups."""
    return [e for text in parts for e in text.strip().splitlines() if not e.startswith("# ")]


def functions_without_example() -> set[str]:
    """Functions of the code that no example shows."""
    refused = {"jsonb_to_record", "jsonb_to_recordset", "jsonb_populate_recordset"}
    common = {*functions._SPECIAL, *setfunctions._BUILDERS} - refused
    own = {*timeplus._SPECIAL, *timeplus._RENAMED}
    return (common - {*map(function_of, examples_of_the_page(_COMMON))}) | (
        own - {*map(function_of, examples_of_the_page(_OWN))}
    )


def show_page() -> str:
    """Each SHOW statement with its columns."""
    parts = []
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int)")
        statements = {"columns": "SHOW COLUMNS FROM t", "create": "SHOW CREATE TABLE t"}
        for what, (meaning, columns) in texts.SHOWN.items():
            description = connection.execute(statements.get(what, f"SHOW {what}")).description
            rows = [
                (code(c[0]), c[1].sql.replace("character varying", "varchar"), text)
                for c, text in zip(description, columns, strict=True)
            ]
            title = f"SHOW {what.upper()}" + {"columns": " FROM r", "create": " kind r"}.get(what, "")
            parts.append(f"\n## {title}\n{meaning}\n\n{table(('column', 'type', 'meaning'), rows)}")
        for what in texts.LISTED:
            assert [c[0] for c in connection.execute(f"SHOW {what}").description] == ["Name"], what
    names = [(f"`SHOW {what.upper()}`", meaning) for what, meaning in texts.LISTED.items()]
    return (
        "# SHOW\n\nWhich SHOW statements exist, and what do their columns mean? All dialects have them. "
        "`LIKE 'pattern'` "
        f"selects names, `FROM schema` the relations of a schema. NULL: unknown, or not of this relation. {_WRITTEN}\n"
        + "".join(parts)
        + f"\n## Lists of names\nThese have one column, `Name`.\n\n{table(('statement', 'content'), names)}"
    )


def shown_without_meaning() -> set[str]:
    """Lists of SHOW that no text describes."""
    refused = {"files"}
    lists = {" ".join(words).lower() for words in utility._LISTS}
    return lists - refused - {*texts.SHOWN, *texts.LISTED}


def metrics_page() -> str:
    """The metrics for Prometheus."""
    rows = []
    for name, family in FAMILIES.items():
        full = PREFIX + name + ("_total" if family.kind == "counter" else "")
        rows.append((f"`{full}`", family.kind, _unit(name), ", ".join(map(code, family.labels)), family.text))
    return (
        "# Metrics\n\nWhat does each metric of `/metrics` measure? [MONITORING](../MONITORING.md#metrics) says how to "
        "scrape it and when to act. A series without a value is missing. Counters start with the process. "
        f"{_WRITTEN}\n\n"
        + table(("metric", "type", "unit", "labels", "meaning"), rows)
        + "\nThe Prometheus library adds `process_cpu_seconds_total`, `process_resident_memory_bytes` and similar.\n"
    )


def _unit(name: str) -> str:
    if name.endswith("timestamp_seconds"):
        return "s since 1970"
    last = name.rsplit("_", 1)[-1]
    flags = dict.fromkeys(("failed", "running", "filling"), "0 or 1")
    return {"seconds": "s", "bytes": "bytes", "info": "1", **flags}.get(last, "number")


def environment_page() -> str:
    """Environment variables."""
    own = [(f"`{name}`", *rest) for name, rest in texts.ENVIRONMENT.items()]
    return (
        "# Environment variables\n\nWhich environment variables does Watersmeet read? Each option of a command "
        "has one: `--log-format` is `WATERSMEET_LOG_FORMAT` ([command line](../CLI.md)). These are others. The process "
        "that writes "
        f"checks them when it opens a database: INVALID_PARAMETER names one with an invalid value. {_WRITTEN}\n\n"
        + table(("variable", "default", "meaning"), own)
        + "\n## Of other programs\n"
        + table(("variable", "meaning"), list(texts.OTHERS.items()))
    )


def variables_of_the_code() -> set[str]:
    """The environment variables that the sources name, without those of options."""
    sources = (p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    found = {v for text in sources for v in re.findall(r"\bWATERSMEET_[A-Z_]+\b", text)}
    options = (o for c in get_command(app).commands.values() for o in c.params)  # type: ignore[attr-defined]
    return found - {o.envvar for o in options if isinstance(o.envvar, str)}


def clients_page() -> str:
    """Results of the tests that run real clients, and the drivers that other tests use."""
    found = json.loads((ROOT / "tests/clients.json").read_text(encoding="utf-8"))
    suites = [
        (name, one["version"], one["ran"], f"{one['passed']} of {one['of']}", str(sum(one["refused"].values())))
        for name, one in sorted(found.items())
    ]
    refused = [
        (name, reason, str(count)) for name, one in sorted(found.items()) for reason, count in one["refused"].items()
    ]
    return (
        "# Clients\n\nWhich clients have run against the server, and how much of it worked? Slow tests run the real "
        "programs and compare their results with PostgreSQL's; a test fails if its result is not the one below. "
        f"[CLIENTS](../CLIENTS.md) says how the server differs. {_WRITTEN}\n\n"
        + table(("client", "version", "what ran", "passed", "refused or different"), suites)
        + ("\n## Refused or different\n" + table(("client", "reason", "tests"), refused) if refused else "")
        + "\n## Drivers\nTests of the server use these drivers:\n\n"
        + table(("driver", "version", "modules with tests"), list(_drivers()))
    )


def _drivers() -> Iterator[tuple[str, str, str]]:
    """The clients among the packages for development, with their pinned versions."""
    pins = (ROOT / "requirements/lock.txt").read_text(encoding="utf-8")
    tests = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests/unit/server").glob("test_*.py"))]
    for package, module in texts.DRIVERS.items():
        version = re.search(rf"^{package}==(\S+)", pins, re.MULTILINE)
        assert version is not None
        uses = sum(re.search(rf"^ *(import|from) {module}\b", text, re.MULTILINE) is not None for text in tests)
        yield package, version[1], str(uses)


def statements_of(name: str) -> set[str]:
    """The first words of all statements of a dialect."""
    found = {*script.statements_of(registry.language_named(name)), "EXPLAIN ANALYZE", "EXPLAIN ROW"}
    return {texts.SYNONYMS.get(statement, statement) for statement in found}


def statements_page() -> str:
    """The statements of the dialects."""
    known = {_TITLES[name]: statements_of(name) for name in _TITLES}
    every = sorted(set().union(*known.values()))
    rows = []
    for statement in every:
        meaning, page = texts.STATEMENTS[statement]
        marks = ("yes" if statement in of_dialect else "–" for of_dialect in known.values())
        rows.append((f"[`{statement}`]({page})", *marks, meaning))
    return (
        "# Statements\n\nWhich statements does each dialect have? RW is RisingWave, SS SQLstream, TP Timeplus and LS "
        f"Lenses. Each links to its description. {_WRITTEN}\n\n" + table(("statement", *known, "meaning"), rows)
    )


def tables_of_connector(page: str) -> dict[str, list[tuple[str, ...]]]:
    """By use and connectors, the options of a page of connectors. Connectors with the same options share a table."""
    found: dict[tuple[str, tuple[OptionSpec, ...]], list[str]] = {}
    for names, use, known in option_sets():
        if set(names.split(", ")) & {*texts.CONNECTORS[page][1]} and (use != "source" or names in BUILT_IN):
            found.setdefault((use, known.shown), []).append(names)
    return {
        f"As {'an' if use[0] in 'aeiou' else 'a'} {use}: {', '.join(code(c) for c in connectors)}": [
            (_named(s), type_of(s), code(default_of(s)) if default_of(s) else "", _meaning(s)) for s in specs
        ]
        for (use, specs), connectors in found.items()
        if specs
    }


def _named(spec: OptionSpec) -> str:
    begin = f"`{spec.name}…`" if spec.kind == "prefix" else f"`{spec.name}`"
    others = f" ({', '.join(f'`{n}`' for n in spec.aliases)})" if spec.aliases else ""
    return (f"**{begin}**" if spec.is_needed else begin) + others


def _meaning(spec: OptionSpec) -> str:
    return spec.doc.replace("|", "\\|") + (" Secret." if spec.secret else "")


def connector_page(page: str) -> str:
    """The options of the connectors of one system."""
    title, _, behavior = texts.CONNECTORS[page]
    heads = ("option", "type", "default", "meaning")
    return (
        f"# {title}: options\n\nWhich options do the connectors have? Their behavior: {behavior}. "
        f"An option in **bold** is required; parentheses contain its other names. {_WRITTEN}\n"
        + "".join(f"\n## {use}\n{table(heads, rows)}" for use, rows in tables_of_connector(page).items())
    )


def connectors_page() -> str:
    """Which connector has which use."""
    uses = (
        "source",
        "sink",
        "captured database",
        "external table",
        "external stream",
        "foreign table",
        "table of requests",
    )
    rows = []
    for page, (title, names, _) in texts.CONNECTORS.items():
        known = {use: [c for c, of, _ in option_sets() if of == use and c in names] for use in uses}
        cells = (", ".join(code(c) for c in known[use] if use != "source" or c in BUILT_IN) for use in uses)
        rows.append((f"[{title}](reference/connectors/{page}.md)", *cells))
    return (
        "# Connectors\n\nWhich connectors exist, for which uses? Each system's page has the options; SHOW CONNECTORS "
        f"lists them too. The sink `blackhole` has none. [SOURCES](SOURCES.md) and [SINKS](SINKS.md) explain the "
        f"behavior. {_WRITTEN}\n\n" + table(("system", *uses), rows)
    )


PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/functions": functions_page,
    "reference/show": show_page,
    "reference/metrics": metrics_page,
    "reference/environment": environment_page,
    "reference/clients": clients_page,
    "reference/statements": statements_page,
    "CONNECTORS": connectors_page,
    **{f"reference/connectors/{page}": functools.partial(connector_page, page) for page in texts.CONNECTORS},
    **{f"reference/dialects/{s}": functools.partial(dialectcoverage.page, s) for s in dialectcoverage.SYSTEMS},
    "FEATURES": dialectcoverage.features_page,
}


def path_of(name: str) -> Path:
    """The file of a page."""
    return ROOT / "docs" / f"{name}.md"


def main(arguments: list[str]) -> int:
    """Writes or checks all pages."""
    status = 0
    for name, page in PAGES.items():
        text, path = page(), path_of(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m scripts.reference")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
