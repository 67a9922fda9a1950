"""The keys of which arrangements have most rows, for those who look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Arrange
from watersmeet.circuit.splitting import Roles, Split, roles
from watersmeet.kernel.arrays.hashing import bucket_of_one
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.state import StateManifest

#: So many keys of an arrangement are shown.
_SHOWN: Final = 5


def hottest_keys(
    circuit: Circuit, states: Mapping[str, StateManifest], split: Split
) -> dict[str, list[dict[str, Any]]]:
    """By arrangement, the keys with most rows: key (texts), rows (about), split (whether all buckets have some).

    Only of what was large enough to tell. states: by "stage/bucket". split: the keys that are split.
    """
    found = {}
    now = roles(circuit, split)
    for op in circuit.operators:
        if not isinstance(op, Arrange):
            continue
        given = now.get(op.inputs[0], Roles())
        keys: dict[int, dict[str, Any]] = {}
        for place, state in states.items():
            for ref in state.operators.get(op.id, {}).get(ROWS, ()):
                for key in () if ref.hot is None else ref.hot.found:
                    if key.hash in given.copied and int(place.partition("/")[2]) != bucket_of_one(
                        key.hash, circuit.buckets
                    ):
                        continue  # a copy
                    told = {"key": list(key.values), "rows": 0, "split": key.hash in given.keys}
                    keys.setdefault(key.hash, told)["rows"] += key.rows
        if keys:
            found[op.id] = sorted(keys.values(), key=lambda k: (-k["rows"], [v or "" for v in k["key"]]))[:_SHOWN]
    return found
