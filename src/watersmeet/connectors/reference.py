"""The options of all connectors: for SHOW CONNECTORS, and for the page that `scripts/connectors_page.py` writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from watersmeet.connectors import externalstreams, foreignstreams
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.databases.captures import TABLE_NAME, TABLE_OPTIONS
from watersmeet.connectors.registry import BUILT_IN, SINKS, SOURCES, SYSTEMS, TABLES

#: The beginning of the page.
_HEAD: Final = """# Options of connectors

All options of all connectors, by their use. Other names of an option stand in parentheses after it. An option in
**bold** is required. `scripts/connectors_page.py` writes this page; `SHOW CONNECTORS` has the same content.
[SOURCES.md](SOURCES.md) and [SINKS.md](SINKS.md) explain how connectors behave.
"""


def option_sets() -> Iterator[tuple[str, str, OptionSet]]:
    """(connector, use, options)."""
    yield from ((name, "source", SOURCES[name].options) for name in sorted(SOURCES))
    sinks = {name: sink.options for name, sink in SINKS.items()}
    yield from ((name, "sink", known) for name, known in sorted(sinks.items()) if known is not None)
    yield from ((name, "captured database", SYSTEMS[name].known) for name in sorted(SYSTEMS))
    yield "mysql-cdc, postgres-cdc", "captured table", OptionSet("a captured table", (TABLE_NAME, *TABLE_OPTIONS))
    tables = {name: table.options for name, table in TABLES.items()}
    yield from ((name, "external table", known) for name, known in sorted(tables.items()) if known is not None)
    yield "kafka", "external stream", externalstreams.STREAM_OPTIONS
    yield "SYS_JDBC", "foreign table", foreignstreams.TABLE_OPTIONS


def rows() -> list[tuple[str, ...]]:
    """The rows of SHOW CONNECTORS: connector, use, option, type, default, whether it is secret, description."""
    return [
        (connector, use, spec.name, _type(spec), _default(spec), "yes" if spec.secret else "no", spec.doc)
        for connector, use, known in option_sets()
        for spec in known.shown
    ]


def page() -> str:
    """The reference page, in Markdown. Connectors with the same options share a table."""
    parts: dict[tuple[str, tuple[OptionSpec, ...]], list[str]] = {}
    for connector, use, known in option_sets():
        if use == "source" and connector not in BUILT_IN:
            continue
        parts.setdefault((use, known.shown), []).append(connector)
    text, last = [_HEAD], ""
    for (use, specs), connectors in parts.items():
        if not specs:
            continue
        if use != last:
            text.append(f"\n## As {'an' if use[0] in 'aeiou' else 'a'} {use}\n")
            last = use
        text.append("\n### " + ", ".join(f"`{c}`" for c in connectors) + "\n")
        text += ["| option | type | default | meaning |", "|---|---|---|---|"]
        text += [f"| {_named(s)} | {_type(s)} | {_quoted(_default(s))} | {_meaning(s)} |" for s in specs]
    return "\n".join(text).replace("\n\n\n", "\n\n") + "\n"


def _quoted(text: str) -> str:
    return f"`{text}`" if text else ""


def _named(spec: OptionSpec) -> str:
    begin = f"`{spec.name}…`" if spec.kind == "prefix" else f"`{spec.name}`"
    others = f" ({', '.join(f'`{n}`' for n in spec.aliases)})" if spec.aliases else ""
    return (f"**{begin}**" if spec.is_needed else begin) + others


def _type(spec: OptionSpec) -> str:
    if spec.kind == "choice":
        return ", ".join(spec.among)
    if spec.kind == "integer" and spec.unit:
        return f"integer, {spec.unit}"
    return {"prefix": "text", "flag": "boolean"}.get(spec.kind, spec.kind)


def _default(spec: OptionSpec) -> str:
    if spec.default is None or spec.default == "":
        return ""
    return str(spec.default).lower() if isinstance(spec.default, bool) else str(spec.default)


def _meaning(spec: OptionSpec) -> str:
    return spec.doc.replace("|", "\\|") + (" Secret." if spec.secret else "")
