"""Bodies of functions in Python, and the conversion of their arguments and values from and to Arrow columns.

A failing row does not affect other rows: if a batch fails, each of its rows is computed separately.
"""

from __future__ import annotations

import base64
import json
import pickle
import textwrap
import traceback
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors.secretnames import concealed
from watersmeet.values.calledfunctions import CalledFunction, wired
from watersmeet.values.types import SqlType

#: For each failed row its number and the reason.
Failures = list[tuple[int, str]]
#: The values of a batch of rows, with NULL for failed rows.
Body = Callable[[Sequence[pa.Array], int], tuple[pa.Array, Failures]]

_MOST_CHARACTERS: Final = 300
_DIGITS: Final = Context(prec=76)
_FILE: Final = "<function>"


class Unsuitable(Exception):  # noqa: N818 - a finding about a body, which becomes an error of the statement
    """A body that is not a function, or can't be loaded."""


Compute = Callable[[Sequence[pa.Array], int], tuple[pa.Array, Failures]]


def reason_of(cause: BaseException, code: str) -> str:
    """An exception in one line: its class, its message, and the line of the body. Secrets of the body are concealed."""
    lines = str(cause).strip().splitlines()
    text = f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
    text = _without_secrets(code, text)
    found = [f.lineno for f in traceback.extract_tb(cause.__traceback__) if f.filename == _FILE]
    return text[:_MOST_CHARACTERS] + (f" (line {found[-1]} of the body)" if found else "")


@lru_cache(maxsize=64)
def _without_secrets(code: str, text: str) -> str:
    return concealed(code, text)[1] or ""


def _loaded(function: CalledFunction) -> Any:
    """The callable, class or namespace of a body."""
    if function.pickled:
        try:
            return pickle.loads(base64.b64decode(function.code))  # noqa: S301 - stored by its owner
        except ModuleNotFoundError as cause:
            raise _missing(cause) from cause
    namespace: dict[str, Any] = {"__name__": function.name}
    try:
        exec(compile(textwrap.dedent(function.code), _FILE, "exec"), namespace)  # noqa: S102
    except ModuleNotFoundError as cause:
        raise _missing(cause) from cause
    except SyntaxError as cause:
        raise Unsuitable(f"the body is not Python: {cause.msg} (line {cause.lineno} of the body)") from cause
    except MemoryError:
        raise
    except BaseException as cause:
        raise Unsuitable(f"the body can't be loaded: {reason_of(cause, function.code)}") from cause
    if function.shape == "aggregate" and function.form == "rows":
        for name in ("create_state", "accumulate"):
            if not callable(namespace.get(name)):
                raise Unsuitable(f"the body has no function {name}")
        return namespace
    found = namespace.get(function.entry)
    if found is None:  # names without quotes may be folded to upper case
        found = next((v for n, v in namespace.items() if n.lower() == function.entry.lower()), None)
    if not callable(found):
        raise Unsuitable(f"the body has no function {function.entry}")
    return found


def _missing(cause: ModuleNotFoundError) -> Unsuitable:
    return Unsuitable(f"there is no module {cause.name} in this environment")


def computing(function: CalledFunction) -> Compute:
    """The body of a function in Python, loaded. Raises Unsuitable."""
    found = _loaded(function)
    if function.shape == "aggregate":
        return _aggregating(found, function)
    if function.form in ("arrow", "pandas"):
        return _by_arrays(found, function)
    if function.form == "lists":
        return _by_lists(found, function)
    return _by_rows(found, function)


def _by_rows(call: Callable[..., Any], function: CalledFunction) -> Compute:
    given = [incoming(kind) for kind in function.parameters]

    def compute(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        values: list[Any] = []
        failures: Failures = []
        rows = zip(*map(_values, columns, given), strict=True) if given else ((),) * count
        for i, row in enumerate(rows):
            try:
                found = call(*row)
                values.append(found if function.shape == "scalar" else list(found if found is not None else ()))
            except MemoryError:
                raise
            except BaseException as cause:
                values.append(None)
                failures.append((i, reason_of(cause, function.code)))
        return converted(values, function, failures), failures

    return compute


def _by_lists(call: Callable[..., Any], function: CalledFunction) -> Compute:
    given = [incoming(kind) for kind in function.parameters]

    def compute(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        found = list(call(*map(_values, columns[: len(given)], given)))
        _check_count(len(found), count)
        failures: Failures = []
        return converted(found, function, failures), failures

    return compute


def _by_arrays(call: Callable[..., Any], function: CalledFunction) -> Compute:
    kind = wired(function.value).arrow
    pandas = function.form == "pandas"

    def compute(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        given = columns[: len(function.parameters)]
        found: Any = call(*[c.to_pandas() for c in given] if pandas else given)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        if isinstance(found, pa.Scalar) or not hasattr(found, "__len__"):
            raise TypeError(f"the body returned {type(found).__name__}, not an array")
        _check_count(len(found), count)
        if isinstance(found, list):
            return pa.array(found, type=kind), []
        made = found if isinstance(found, pa.Array) else pa.array(found, from_pandas=pandas)
        return (made if made.type == kind else made.cast(kind)), []

    return compute


def _check_count(found: int, count: int) -> None:
    if found != count:
        raise ValueError(f"the body returned {found} values for {count} rows")


def _aggregating(found: Any, function: CalledFunction) -> Compute:
    """The value of each group, from the array of its rows."""
    given = [incoming(kind) for kind in function.parameters]
    compute = _of_states(found) if function.form == "rows" else _of_objects(found, function)
    several = len(function.parameters) != 1

    def aggregate(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        values: list[Any] = []
        failures: Failures = []
        for i, group in enumerate(columns[0].to_pylist()):
            rows = [tuple(row.values()) if several else (row,) for row in group or ()]
            rows = rows if function.ordered else in_order(rows)
            converters = [(place, convert) for place, convert in enumerate(given) if convert is not None]
            if converters:
                rows = [tuple(_converted(row, converters)) for row in rows]
            try:
                values.append(compute(rows))
            except MemoryError:
                raise
            except BaseException as cause:
                values.append(None)
                failures.append((i, reason_of(cause, function.code)))
        _check_count(len(values), count)
        return converted(values, function, failures), failures

    return aggregate


def _converted(row: Sequence[Any], converters: Sequence[tuple[int, Callable[[Any], Any]]]) -> list[Any]:
    made = list(row)
    for place, convert in converters:
        made[place] = None if made[place] is None else convert(made[place])
    return made


def _of_states(namespace: dict[str, Any]) -> Callable[[Sequence[tuple[Any, ...]]], Any]:
    """The value of a group, from `create_state`, `accumulate` and `finish` over its rows."""
    create, accumulate, finish = namespace["create_state"], namespace["accumulate"], namespace.get("finish")

    def compute(rows: Sequence[tuple[Any, ...]]) -> Any:
        state = create()
        for row in rows:
            state = accumulate(state, *row)
        return state if finish is None else finish(state)

    return compute


def _of_objects(cls: Callable[[], Any], function: CalledFunction) -> Callable[[Sequence[tuple[Any, ...]]], Any]:
    """The value of a group, from `process` (with columns as lists) and `finalize` of an object for the group."""
    for name in ("process", "finalize"):
        if not callable(getattr(cls, name, None)):
            raise Unsuitable(f"the class {function.entry} has no method {name}")

    def compute(rows: Sequence[tuple[Any, ...]]) -> Any:
        state = cls()
        if rows:
            state.process(*map(list, zip(*rows, strict=True)))
        found = state.finalize()
        if isinstance(found, list) and function.returns.name != "array":
            return found[0] if found else None
        return found

    return compute


def in_order(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows in an order that only depends on their values."""

    def key(row: tuple[Any, ...]) -> list[tuple[bool, bool, Any, str]]:
        return [(v is None, v != v, 0 if v is None or v != v else v, repr(v)) for v in row]  # noqa: PLR0124 - NaN

    try:
        return sorted(rows, key=key)
    except TypeError:  # these are nested values
        return sorted(rows, key=repr)


class Fields(dict[str, Any]):
    """A struct, whose fields are available by subscripts and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _unchanged(value: Any) -> Any:
    return value


def incoming(kind: SqlType) -> Callable[[Any], Any] | None:
    """Converts a value of Arrow for a body; None if nothing needs to change."""
    if kind.name == "jsonb":
        return json.loads
    if kind.name == "map":
        key, item = (incoming(part) or _unchanged for part in kind.entry)
        return lambda value: {key(e["key"]): None if e["value"] is None else item(e["value"]) for e in value}
    if kind.name == "array":
        assert kind.element is not None
        inner = incoming(kind.element)
        return None if inner is None else lambda value: [None if v is None else inner(v) for v in value]
    if kind.name == "struct":
        fields = {name: incoming(field) for name, field in kind.fields}

        def convert(value: dict[str, Any]) -> Fields:
            return Fields(
                (name, v if v is None or (change := fields[name]) is None else change(v)) for name, v in value.items()
            )

        return convert
    return None


def _values(column: pa.Array, convert: Callable[[Any], Any] | None) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _jsonb(value: Any) -> str:
    """JSON in the stored form of jsonb."""
    text = json.dumps(value, allow_nan=False)
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def outgoing(kind: SqlType) -> Callable[[Any], Any] | None:
    """Converts a value of a body for Arrow; None if nothing needs to change."""
    if kind.name == "jsonb":
        return _jsonb
    if kind.name == "numeric":
        unit = Decimal(1).scaleb(-kind.decimals)
        return lambda v: v.quantize(unit, ROUND_HALF_UP, _DIGITS) if isinstance(v, Decimal) and v.is_finite() else v
    if kind.name == "map":
        key, item = (outgoing(part) or _unchanged for part in kind.entry)
        return lambda value: [{"key": key(k), "value": None if v is None else item(v)} for k, v in dict(value).items()]
    if kind.name == "array":
        assert kind.element is not None
        inner = outgoing(kind.element)
        return None if inner is None else lambda value: [None if v is None else inner(v) for v in value]
    if kind.name == "struct":
        fields = [(name, outgoing(field)) for name, field in kind.fields]

        def convert(value: Any) -> dict[str, Any]:
            values = _fields(value, [name for name, _ in fields])
            return {
                name: v if v is None or change is None else change(v)
                for (name, change), v in zip(fields, values, strict=True)
            }

        return convert
    return None


def _fields(value: Any, names: Sequence[str]) -> Sequence[Any]:
    """The fields of a struct, which a body returns as a dictionary, a sequence or an object."""
    if isinstance(value, dict):
        return [value[name] for name in names]
    if isinstance(value, list | tuple):
        if len(value) != len(names):
            raise ValueError(f"a row has {len(value)} values instead of {len(names)}")
        return value
    return [value] if len(names) == 1 and not hasattr(value, names[0]) else [getattr(value, name) for name in names]


def converted(values: list[Any], function: CalledFunction, failures: Failures) -> pa.Array:
    """The values of a body as a column. Values of other types become failures."""
    kind = wired(function.value).arrow
    convert = outgoing(function.value)
    try:
        changed = values if convert is None else [None if v is None else convert(v) for v in values]
        return pa.array(changed, type=kind)
    except MemoryError:
        raise
    except Exception:
        pass
    made: list[pa.Scalar] = []
    for i, value in enumerate(values):
        try:
            made.append(pa.scalar(value if value is None or convert is None else convert(value), type=kind))
        except MemoryError:
            raise
        except Exception as cause:
            made.append(pa.scalar(None, type=kind))
            shown = " ".join(str(cause).split())[:120]
            failures.append((i, f"the body returned a {type(value).__name__}, not {function.value.sql}: {shown}"))
    return pa.array([m.as_py() for m in made], type=kind)


def with_failures_of_rows(compute: Compute, function: CalledFunction) -> Body:
    """A function like `compute` that computes the rows of a failing batch one by one."""

    def body(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        try:
            return compute(columns, count)
        except MemoryError:
            raise
        except BaseException as cause:
            if count <= 1:
                kind = wired(function.value).arrow
                return pa.nulls(count, kind), [(i, reason_of(cause, function.code)) for i in range(count)]
        pieces, failures = [], []
        for i in range(count):
            values, failed = body([c.slice(i, 1) for c in columns], 1)
            pieces.append(values)
            failures += [(i, reason) for _, reason in failed]
        return pa.concat_arrays(pieces), failures

    return body


def strict(body: Body) -> Body:
    """A function that calls the body for rows without NULL; the value of other rows is NULL."""

    def full_rows(columns: Sequence[pa.Array], count: int) -> tuple[pa.Array, Failures]:
        full = pa.array([True] * count)
        for column in columns:
            full = pc.and_(full, column.is_valid())
        rows = pc.indices_nonzero(full)
        values, failures = body([c.take(rows) for c in columns], len(rows))
        places = pc.if_else(full, pc.subtract(pc.cumulative_sum(full.cast(pa.int64())), 1), None)
        numbers = rows.to_pylist()
        return values.take(places), [(numbers[i], reason) for i, reason in failures]

    return full_rows
