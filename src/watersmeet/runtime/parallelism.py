"""The number of buckets of a database: that of the circuit of its newest epoch; before the first one that of a file."""

from __future__ import annotations

import contextlib
import json
from typing import Final

from watersmeet import storage
from watersmeet.errors import Error, error
from watersmeet.runtime.plans import load_circuit
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Rebuilding

MAX_PARALLELISM: Final = 256
_FILE: Final = "PARALLELISM"


def check_parallelism(wanted: int) -> None:
    """INVALID_PARAMETER if there can't be so many buckets."""
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
        # What a rebuild has made so far is not in use yet.
        try:
            return load_circuit(layout, purpose.before if isinstance(purpose, Rebuilding) else last.circuit).buckets
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            # It is made again from the plans of the views, for the buckets that were noted last.
    try:
        return int(json.loads(storage.read_file(layout.root / _FILE))["buckets"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as cause:
        raise error("DATABASE_DAMAGED", f"cannot read the file {_FILE} of the database") from cause


def begin_parallelism(layout: Layout, buckets: int) -> None:
    """Notes the number of buckets of a new database; nothing if another process was faster."""
    with contextlib.suppress(FileExistsError):
        storage.create_file(layout.root / _FILE, _text(buckets), durable=layout.durable)


def store_parallelism(layout: Layout, buckets: int) -> None:
    """Notes another number of buckets, for a database that has no epoch yet."""
    storage.replace_file(layout.root / _FILE, _text(buckets), durable=layout.durable)


def _text(buckets: int) -> bytes:
    return (json.dumps({"buckets": buckets}) + "\n").encode()
