"""Converts Lenses' aggregate functions to array functions over `array_agg`, or to functions of standard SQL.

Lenses SQL, "Functions", "Aggregate". N is 1 if it is missing, as in the examples of the reference; COLLECT and
COLLECT_UNIQUE without it have no limit. NULLs count for FIRST and LAST only.

| function | value |
|---|---|
| `COLLECT(x, n)`, `COLLECT_UNIQUE(x, n)` | the first n values, in the order of their arrival |
| `MINK(x, n)`, `MAXK(x, n)` | the n least or greatest values, the most extreme first |
| `MINK_UNIQUE(x, n)`, `MAXK_UNIQUE(x, n)` | the same, each value once |
| `TOPK(x, n)`, `BOTTOMK(x, n)` | the n most or least frequent values; equally frequent ones by value |
| `FIRST(x)`, `LAST(x)` | the value of the record that arrived first or last |
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import adapt, text_of
from watersmeet.dialects.tree.queries import node_error

#: For each function, the function of `expressions.nestedfunctions` over all values of the group.
_LISTS: Final = {
    "collect": "$collected",
    "collect_unique": "$collected_once",
    "mink": "$least",
    "maxk": "$greatest",
    "mink_unique": "$least_once",
    "maxk_unique": "$greatest_once",
    "topk": "$most_frequent",
    "bottomk": "$least_frequent",
}

#: The names of the functions of standard SQL.
_SAME: Final = {"first": "first_value", "last": "last_value"}

#: The default number of values of COLLECT, which is larger than any array.
_ALL: Final = 2**31 - 1


def adapt_aggregate(node: exp.Anonymous, sql: str) -> bool:
    """Replaces a call of an aggregate function that only Lenses has. False for other calls.

    Raises SYNTAX_ERROR for a wrong number of arguments, INVALID_PARAMETER unless the number of values is a constant
    above 0.
    """
    written = node.this if isinstance(node.this, str) else node.this.name
    name, arguments = written.lower(), list(node.expressions)
    if name not in _LISTS and name not in _SAME:
        return False
    most = 1 if name in _SAME else 2
    if not 1 <= len(arguments) <= most:
        takes = "one argument" if most == 1 else "a value and, if it is not 1, the number of values"
        raise node_error(sql, node, "SYNTAX_ERROR", f"{name.upper()} takes {takes}")
    adapt(node, text_of(node))
    if name in _SAME:
        node.set("this", _SAME[name])
        return True
    number = arguments[1] if len(arguments) > 1 else exp.Literal.number(_ALL if name.startswith("collect") else 1)
    if not number.is_int or int(number.name) < 1:
        raise node_error(
            sql, number, "INVALID_PARAMETER", f"the number of values of {name.upper()} must be a constant above 0"
        )
    node.set("this", _LISTS[name])
    node.set("expressions", [exp.Anonymous(this="array_agg", expressions=[arguments[0]]), number])
    return True
