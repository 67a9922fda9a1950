"""Forms of operators: what a text test shows of the kernel, whatever its data and its words.

    python -m tests.forms

says which forms text tests have that `tests/spark/test_views.py` does not show on Spark, and which files add them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from tests.slt.test_text import files, name, run
from watersmeet.circuit.base import Operator
from watersmeet.runtime import coordinator

#: A dialect and a class of operators; or a form of operators: their class, what they are and what they have.
Form = tuple[str, ...]

_WORDS = frozenset({"kind", "how", "comparison", "direction", "mode"})
_PARTS = frozenset({"residual", "time", "bound", "retention", "order", "limit", "partitions"})


def form(operator: Operator) -> Form:
    """The class of an operator, its flags and words, and which optional parts it has."""
    found = []
    for field in dataclasses.fields(operator):
        value = getattr(operator, field.name)
        if isinstance(value, bool) or field.name in _WORDS:
            found.append(f"{field.name}={value}")
        elif field.name in _PARTS and value is not None:
            found.append(field.name)
    return (type(operator).__name__, *found)


def forms(path: Path) -> set[Form]:
    """The forms in the circuits of a text test, which is run in process; and its dialect with each class."""
    found: set[Form] = set()
    save = coordinator.save_circuit

    def noted(layout, circuit):
        found.update(form(o) for o in circuit.operators)
        return save(layout, circuit)

    with mock.patch.object(coordinator, "save_circuit", noted):
        run(path, runtime="inprocess", parallelism=1)
    return found | {(name(path).split("/")[0], f[0]) for f in found}


def lacking(shown: Iterable[str]) -> dict[str, set[Form]]:
    """By file, the forms that it would add to the files `shown`, those that add most first."""
    by_file = {name(path): forms(path) for path in files()}
    have = {f for file in shown for f in by_file[file]}
    found: dict[str, set[Form]] = {}
    while more := {file: f - have for file, f in by_file.items() if f - have}:
        best = max(more, key=lambda file: (len(more[file]), file))
        found[best] = more[best]
        have |= more[best]
    return found


if __name__ == "__main__":
    from tests.spark.test_views import FORMS, KINDS

    missing = lacking([*KINDS, *FORMS])
    for file, added in missing.items():
        print(file, *("\n    " + " ".join(f) for f in sorted(added)))
    sys.exit(bool(missing))
