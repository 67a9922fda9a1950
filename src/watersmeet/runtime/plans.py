"""Compiled circuits on disk: a database runs the plan that was saved when its views were made, never a new one.

Each set of views that ran together has a file, with all of their operators: compressed, a tenth of the bytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from functools import lru_cache

from watersmeet import storage
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.errors import error
from watersmeet.serialization import from_json
from watersmeet.store.layout import Layout


def save_circuit(layout: Layout, circuit: Circuit, *, over: bool = False) -> None:
    """Stores the circuit under its fingerprint, unless the file exists. over: also over a damaged file, in one step."""
    path = layout.circuit(circuit.fingerprint)
    if over or not storage.exists(path):
        deflated = base64.b64encode(zlib.compress(circuit.text.encode(), 4)).decode("ascii")
        value = {"state_format": STATE_FORMAT_VERSION, "deflated_circuit": deflated}
        storage.replace_file(path, layout.seal(path, value), durable=layout.durable)


def load_circuit(layout: Layout, fingerprint: str) -> Circuit:
    """The circuit with that fingerprint.

    DATABASE_DAMAGED if it is missing, STATE_MISMATCH if another release made it.
    """
    path = layout.circuit(fingerprint)
    try:
        value = layout.unseal(path)
    except FileNotFoundError as cause:
        raise error("DATABASE_DAMAGED", f"plan {path.name} is missing from {path.parent}") from cause
    if value.get("state_format") != STATE_FORMAT_VERSION:
        raise error(
            "STATE_MISMATCH",
            f"the state has format {value.get('state_format')}, this release has {STATE_FORMAT_VERSION}",
            hint="Use the release that wrote it, or rebuild the views.",
        )
    circuit = from_json(Circuit, json.loads(zlib.decompress(base64.b64decode(value["deflated_circuit"]))))
    if circuit.fingerprint != fingerprint:
        raise error(
            "STATE_MISMATCH",
            f"plan {path.name} does not have the fingerprint in its name",
            detail="It was changed, or this release reads it differently.",
        )
    return circuit


@lru_cache(maxsize=4)
def kept_circuit(layout: Layout, fingerprint: str) -> Circuit:
    """As `load_circuit`, for those who ask again and again what runs: the last ones are kept."""
    return load_circuit(layout, fingerprint)
