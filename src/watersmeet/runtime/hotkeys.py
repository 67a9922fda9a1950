"""The keys of which arrangements have most rows, for those who look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Arrange
from watersmeet.circuit.splitting import Roles, Split, roles
from watersmeet.kernel.arrays.hashing import bucket_of_one
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.runtime.status import HotKeyStatus

#: So many keys of an arrangement are shown.
_SHOWN: Final = 5


def hottest_keys(
    circuit: Circuit, states: Mapping[str, StateManifest], split: Split
) -> dict[str, tuple[HotKeyStatus, ...]]:
    """By arrangement, the keys with most rows.

    Only of what was large enough to tell. states: by "stage/bucket". split: the keys that are split.
    """
    found = {}
    now = roles(circuit, split)
    for op in circuit.operators:
        if not isinstance(op, Arrange):
            continue
        given = now.get(op.inputs[0], Roles())
        keys: dict[int, HotKeyStatus] = {}
        for place, state in states.items():
            for ref in state.operators.get(op.id, {}).get(ROWS, ()):
                for key in () if ref.hot is None else ref.hot.found:
                    if key.hash in given.copied and int(place.partition("/")[2]) != bucket_of_one(
                        key.hash, circuit.buckets
                    ):
                        continue  # a copy
                    before = 0 if key.hash not in keys else keys[key.hash].rows
                    keys[key.hash] = HotKeyStatus(key.values, before + key.rows, key.hash in given.keys)
        if keys:
            found[op.id] = tuple(sorted(keys.values(), key=lambda k: k.order)[:_SHOWN])
    return found
