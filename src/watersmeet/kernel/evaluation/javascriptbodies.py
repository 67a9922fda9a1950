"""Bodies of functions in JavaScript, run by mini-racer (V8): they can't access files, the network or modules.

A batch of rows is one call, with the arguments and the values as JSON. Integers that JavaScript's numbers can't
represent are BigInt; numeric values, dates and times are texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from watersmeet.kernel.evaluation.functionbodies import Compute, Failures, Unsuitable, converted, in_order
from watersmeet.system.process import library
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.types import SqlType

_MOST_BYTES: Final = 512 << 20
_SAFE: Final = 2**53
_EXPORT: Final = re.compile(r"^\s*export\s+(?:default\s+)?(?=(?:async\s+)?function|class|const|let|var)", re.MULTILINE)
_CHARACTERS: Final = 300

#: Calls the body for each row, or once for lists; returns [values, failures] as JSON.
_HARNESS: Final = """
(function (body, shape, form, ordered, kinds) {
  const big = v => typeof v === 'bigint' ? v.toString()
    : typeof v === 'number' && !Number.isFinite(v) ? String(v) : v;
  const read = (v, kind) => typeof v === 'string' && kind === 'integer' ? BigInt(v)
    : typeof v === 'string' && kind === 'float' ? Number(v) : v;
  const said = e => e instanceof Error ? `${e.name}: ${e.message}` : String(e);
  const given = row => row.map((v, i) => read(v, kinds[i]));
  const columns = rows => kinds.map((_, i) => rows.map(row => row[i]));
  const checked = v => { if (v instanceof Promise) throw new TypeError('the body is asynchronous'); return v; };
  const state = rows => {
    if (form === 'rows') {
      const found = rows.reduce((s, row) => { const n = body.accumulate(s, ...row); return n === undefined ? s : n; },
        body.create_state());
      return body.finish ? body.finish(found) : found;
    }
    const made = Object.create(body);
    made.initialize();
    if (rows.length) made.process(...columns(rows));
    return made.finalize();
  };
  return text => {
    let rows = JSON.parse(text);
    const values = [], failures = [];
    if (form === 'lists' && shape === 'scalar') {
      const found = Array.from(checked(body(...columns(rows.map(given)))));
      if (found.length !== rows.length)
        throw new Error(`the body returned ${found.length} values for ${rows.length} rows`);
      values.push(...found);
    } else rows.forEach((row, i) => {
      try {
        const found = shape === 'aggregate' ? state(row.map(given))
          : shape === 'table' ? Array.from(body(...given(row)) ?? []) : checked(body(...given(row)));
        values.push(found === undefined ? null : found);
      } catch (e) { values.push(null); failures.push([i, said(e)]); }
    });
    return JSON.stringify([values, failures], (_, v) => big(v));
  };
})
"""


def computing(function: CalledFunction) -> Compute:
    """The body of a function, loaded. Raises Unsuitable."""
    racer = library("py_mini_racer", "functions in JavaScript")
    context = racer.MiniRacer()
    kinds = [_kind(kind) for kind in function.parameters]
    settings = json.dumps([function.shape, function.form, function.ordered, kinds])[1:-1]
    try:
        context.eval(_EXPORT.sub("", _source(function)), max_memory=_MOST_BYTES)
        if function.shape == "aggregate" and function.form == "rows":
            found = "({create_state, accumulate, finish: typeof finish === 'undefined' ? null : finish})"
        else:
            found = "__object" if function.shape == "aggregate" else function.entry
        context.eval(f"const __call = {_HARNESS}({found}, {settings});", max_memory=_MOST_BYTES)
    except racer.JSOOMException:
        raise MemoryError from None
    except racer.JSEvalException as cause:
        raise Unsuitable(f"the body can't be loaded: {_said(cause)}") from cause
    several = function.shape == "aggregate" and len(function.parameters) != 1

    def compute(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        if function.shape == "aggregate":
            rows: list[Any] = [_group(group, function, several=several) for group in columns[0].to_pylist()]
        else:
            values = [c.to_pylist() for c in columns[: len(function.parameters)]]
            rows = [list(row) for row in zip(*values, strict=True)] if values else [[] for _ in range(count)]
            rows = [_row(row, function) for row in rows]
        try:
            text = context.call("__call", json.dumps(rows), max_memory=_MOST_BYTES)
        except racer.JSOOMException:
            raise MemoryError from None
        except racer.JSEvalException as cause:
            raise RuntimeError(_said(cause)) from cause
        found, failed = json.loads(text)
        failures: Failures = [(i, str(reason)[:_CHARACTERS]) for i, reason in failed]
        change = _outgoing(function.value)
        made = [None if v is None or change is None else change(v) for v in found] if change else found
        return converted(made, function, failures), failures

    return compute


def _source(function: CalledFunction) -> str:
    """The text with a declaration of the function; a text without declaration is the function's body."""
    code = function.code
    if function.shape == "aggregate":
        return code if function.form == "rows" else f"const __object = ({code.strip().rstrip(';')});"
    if re.search(rf"\bfunction\s*\*?\s*{re.escape(function.entry)}\s*\(", code):
        return code
    star = "*" if function.shape == "table" else ""
    return f"function{star} {function.entry}({', '.join(n or '_' for n in function.names)}) {{\n{code}\n}}"


def _said(cause: BaseException) -> str:
    """The message of an error of JavaScript, without the lines of its source."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return next((re.sub(r"^<anonymous>:\d+: ", "", line) for line in lines if "Error" in line), "an error")[
        :_CHARACTERS
    ]


def _kind(kind: SqlType) -> str:
    return "integer" if kind.is_integer else "float" if kind.is_float else ""


def _group(group: list[Any] | None, function: CalledFunction, *, several: bool) -> list[list[Any]]:
    rows = [tuple(row.values()) if several else (row,) for row in group or ()]
    return [_row(list(row), function) for row in (rows if function.ordered else in_order(rows))]


def _row(row: list[Any], function: CalledFunction) -> list[Any]:
    return [_incoming(value, kind) for value, kind in zip(row, function.parameters, strict=True)]


def _incoming(value: Any, kind: SqlType) -> Any:
    """A value as JSON."""
    if value is None or isinstance(value, bool):
        return value
    if kind.name == "jsonb":
        return json.loads(value)
    if kind.element is not None:  # a map is an array of its entries
        return [_incoming(v, kind.element) for v in value]
    if kind.name == "struct":
        return {name: _incoming(value[name], inner) for name, inner in kind.fields}
    if isinstance(value, int):
        return value if abs(value) < _SAFE else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if value != value else f"{'-' * (value < 0)}Infinity"  # noqa: PLR0124
    return value if isinstance(value, str) else value.isoformat() if hasattr(value, "isoformat") else f"{value:f}"


def _outgoing(kind: SqlType) -> Callable[[Any], Any] | None:
    """Converts a value of JSON for Python; None if nothing needs to change."""
    if kind.is_integer:
        return _integer
    if kind.is_float:
        return lambda v: float(v) if isinstance(v, str) and v in ("NaN", "Infinity", "-Infinity") else v
    if kind.name == "numeric":
        return lambda v: Decimal(str(v)) if isinstance(v, str | int | float) and not isinstance(v, bool) else v
    if kind.name in ("date", "time", "timestamp", "timestamptz"):
        return lambda v: pa.scalar(v).cast(kind.arrow).as_py() if isinstance(v, str) else v
    if kind.element is not None:
        inner = _outgoing(kind.element)
        return None if inner is None else lambda v: [None if i is None else inner(i) for i in v]
    if kind.name == "struct":
        changes = [(name, _outgoing(field)) for name, field in kind.fields]

        def convert(value: Any) -> Any:
            if isinstance(value, dict):
                values = [value.get(name) for name, _ in changes]
            else:
                values = value if isinstance(value, list) and len(changes) != 1 else [value]
            pairs = zip(changes, values, strict=True)
            return {n: v if v is None or change is None else change(v) for (n, change), v in pairs}

        return convert
    return None


def _integer(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else value
