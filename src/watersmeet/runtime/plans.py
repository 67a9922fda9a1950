"""Saved circuits, their number of buckets, and whether state belongs to a circuit.

A database always runs the circuit that was saved when its views were created, never a new one. Each set of views that
ran together has a file with all its operators, compressed to a tenth of its size. The number of buckets is that of the
circuit of the newest epoch; before the first epoch that of a file.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.errors import Error, error
from watersmeet.kernel.operators import STATEFUL
from watersmeet.objectstores import storage
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Rebuilding
from watersmeet.values.serialization import from_json


def save_circuit(layout: Layout, circuit: Circuit, *, over: bool = False) -> None:
    """Store the circuit under its fingerprint, unless the file exists. over: also replace a damaged file."""
    path = layout.circuit(circuit.fingerprint)
    if over or not storage.exists(path):
        deflated = base64.b64encode(zlib.compress(circuit.text.encode(), 4)).decode("ascii")
        value = {"state_format": STATE_FORMAT_VERSION, "deflated_circuit": deflated}
        storage.replace_file(path, layout.seal(path, value), durable=layout.durable)


def load_circuit(layout: Layout, fingerprint: str) -> Circuit:
    """The circuit with that fingerprint.

    Raises DATABASE_DAMAGED if it is missing, STATE_MISMATCH if another release made it.
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
    """Like `load_circuit`, with a cache of the last circuits."""
    return load_circuit(layout, fingerprint)


MAX_PARALLELISM: Final = 256
_FILE: Final = "PARALLELISM"


def check_parallelism(wanted: int) -> None:
    """Raises INVALID_PARAMETER for an impossible number of buckets."""
    if not 1 <= wanted <= MAX_PARALLELISM:
        raise error(
            "INVALID_PARAMETER", f"parallelism can't be {wanted}", hint=f"It must be between 1 and {MAX_PARALLELISM}."
        )


def parallelism(layout: Layout, log: CommitLog) -> int | None:
    """The number of buckets of the state as of the newest commit; None in a new database."""
    last = log.last_epoch()
    if last is not None and last.circuit is not None:
        backfill = None if last.frontier is None else last.frontier.backfill
        purpose = None if backfill is None else backfill.purpose
        # The new state of a rebuild is not in use yet.
        try:
            return kept_circuit(layout, purpose.before if isinstance(purpose, Rebuilding) else last.circuit).buckets
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            # The circuit is created again from the plans of the views, for the stored number of buckets.
    try:
        return int(json.loads(storage.read_file(layout.root / _FILE))["buckets"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as cause:
        raise error("DATABASE_DAMAGED", f"cannot read the file {_FILE} of the database") from cause


def begin_parallelism(layout: Layout, buckets: int) -> None:
    """Store the number of buckets of a new database, unless another process has done so."""
    with contextlib.suppress(FileExistsError):
        storage.create_file(layout.root / _FILE, _text(buckets), durable=layout.durable)


def store_parallelism(layout: Layout, buckets: int) -> None:
    """Store another number of buckets, for a database without epochs."""
    storage.replace_file(layout.root / _FILE, _text(buckets), durable=layout.durable)


def _text(buckets: int) -> bytes:
    return (json.dumps({"buckets": buckets}) + "\n").encode()


def check_state(stored: Circuit, circuit: Circuit, live: frozenset[str]) -> None:
    """Raises STATE_MISMATCH if a live view's operators are not those of the stored state."""
    if stored.buckets != circuit.buckets:
        raise error("PARALLELISM_MISMATCH", f"the state is for parallelism {stored.buckets}, not {circuit.buckets}")
    check_operators(stored, circuit, circuit.upstream({s.id for s in circuit.sinks if s.relation_id in live}))


def check_operators(stored: Circuit, circuit: Circuit, operators: Iterable[str]) -> None:
    """Raises STATE_MISMATCH if one of `operators` of a circuit has no state in the stored one."""
    for o in operators:
        if circuit.by_id[o].kind not in STATEFUL:
            continue  # its id may change
        moved = stored.buckets == circuit.buckets and stored.stages.get(o) != circuit.stages[o]
        if o not in stored.by_id or moved:
            raise error(
                "STATE_MISMATCH",
                f"there is no state for operator {o}",
                detail="The plan of a view is not the one with which its state was built.",
                hint="Use the plan that was saved with the view, or drop the view and create it again.",
            )
