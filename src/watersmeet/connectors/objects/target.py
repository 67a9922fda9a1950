"""The targets `s3`, `gcs` and `azblob`: objects of Parquet, JSON or CSV, each of which is there once, or not at all.

    orders/
        day=2024-05-01/s12-00000001-000000000017-000000000000-0.parquet
        .watersmeet/owner                   which sink the directory belongs to
        .watersmeet/log/000000000042.json   how far it is, and which objects are part of it

The log is a row of objects, each made only if its number is free. So of several writers one makes the next entry. Who
opens the target makes one, too: all others are behind then, and what they try to add is refused. The entry with a
place is the step in which everything up to that place is delivered.

Objects get their names before that. A name has the place of its rows, and the same place always has the same rows: what
a writer leaves behind that did not come to its entry, the next one finds, or makes again. Objects of an earlier
generation are removed when the first part of a new one is there, and whenever the target is opened.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import Connector, Delivery, Place, SinkBatch, Target, Unavailable
from watersmeet.connectors.files.options import store_specs
from watersmeet.connectors.files.writing import FILE_SPECS, RowFiles, is_after, stem_of, unavailable
from watersmeet.errors import Error, error
from watersmeet.objectstores.base import ObjectPath, StoreProblem, object_path
from watersmeet.objectstores.stores import check_objects, open_store
from watersmeet.system.process import fault

_STATE: Final = ".watersmeet"
_NAME: Final = "object_name"
#: Objects that are written at the same time.
_WRITERS: Final = 8


class ObjectTarget:
    """See `base.Target`. With the option `object_name`, `data.json` for instance, several targets share a directory:
    the names of objects have that at both ends, and each target has a log of its own.
    """

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        place, self._files = _place(delivery)
        self._store = open_store(place.location)
        self._root = "".join(f"{part}/" for part in place.path.split("/") if part)
        self._shown = f"{place.location.url}/{self._root}"
        self._owner = {"database": database_id, "sink": delivery.target_id}
        self._name = delivery.target_id
        self._state = f"{self._root}{_STATE}"
        stem, _ = _object_name(delivery)
        if stem:
            self._name = f"{stem}{database_id}-{delivery.target_id}"
            self._state += f"/{self._name}"
        self._writer = ""
        self._number = 0
        """Of the newest entry that is known."""
        self._generation = 0
        self._newest: Place | None = None
        self._has_older = False

    def open(self, generation: int) -> Place | None:
        with unavailable(self._shown):
            self._claim()
            self._writer = secrets.token_hex(8)
            self._generation = generation
            self._number = self._last_number()
            while True:
                newest: dict[str, Any] = {"generation": 0, "place": None}
                if self._number:
                    newest = self._entry(self._number)
                if newest["generation"] > generation:
                    raise self._fenced()
                self._newest = None if newest["place"] is None else Place(*newest["place"])
                fault("objects.looked")
                if self._add([]):
                    break
                self._number += 1  # another one came first
            fault("objects.fenced")
            self._has_older = True
            self._remove_generations()
            return self._newest

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        wanted = [p for p in batches if is_after(p.place, self._newest)]
        if not wanted:
            return
        with unavailable(self._shown):
            if self._exists(self._number + 1):
                raise self._fenced()
            names = self._write(wanted)
            fault("objects.written")
            before, self._newest = self._newest, wanted[-1].place
            try:
                added = self._add(names, wanted[-1].time_us)
            except BaseException:
                self._newest = before
                raise
            if not added:
                self._withdraw(names)
                raise self._fenced()
            fault("objects.committed")
            self._remove_generations()

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _claim(self) -> None:
        """CONNECTOR_OPTION if the directory belongs to another sink."""
        name = f"{self._state}/owner"
        try:
            owner = self._store.get(name)
        except FileNotFoundError:
            self._store.create(name, json.dumps(self._owner).encode())
            owner = self._store.get(name)
        if json.loads(owner) != self._owner:
            raise error(
                "CONNECTOR_OPTION",
                f'path "{self._shown}" belongs to another sink, or to one that was dropped',
                hint=f"Name another directory, or delete this one with its {_STATE}.",
            )

    def _write(self, batches: Sequence[SinkBatch]) -> list[str]:
        """Makes the objects of batches; their names."""
        pieces = [piece for p in batches for piece in self._files.pieces(self._stem(p.place), self._files.rows(p))]
        if len(pieces) == 1:
            self._write_piece(*pieces[0])
        elif pieces:
            with ThreadPoolExecutor(min(_WRITERS, len(pieces))) as pool:
                for _ in pool.map(lambda piece: self._write_piece(*piece), pieces):
                    fault("objects.one written")
        return [name for name, _ in pieces]

    def _write_piece(self, name: str, rows: pa.Table) -> None:
        data = io.BytesIO()
        self._files.write(data, rows)
        self._store.create(self._root + name, data.getvalue())  # one that is there has the same rows

    def _stem(self, place: Place) -> str:
        return f"{self._name}-{stem_of(place)}"

    def _entry_name(self, number: int) -> str:
        return f"{self._state}/log/{number:012}.json"

    def _last_number(self) -> int:
        """The number of the newest entry; 0 if there is none. Numbers have no gaps: few questions find the last one."""
        step = 1
        while self._exists(step):
            step *= 2
        last = step // 2  # is there, or 0
        while step > last + 1:
            middle = (last + step) // 2
            if self._exists(middle):
                last = middle
            else:
                step = middle
        return last

    def _entry(self, number: int) -> dict[str, Any]:
        """An entry of the log. Unavailable if a newer generation has removed it meanwhile."""
        try:
            found: dict[str, Any] = json.loads(self._store.get(self._entry_name(number)))
        except FileNotFoundError:
            raise Unavailable(f"the log of {self._shown} changes") from None
        return found

    def _exists(self, number: int) -> bool:
        try:
            self._store.stat(self._entry_name(number))
        except FileNotFoundError:
            return False
        return True

    def _add(self, names: list[str], time_us: int | None = None) -> bool:
        """Makes the next entry: the newest place, and the objects that have come with it; False if another writer has
        made it.
        """
        number = self._number + 1
        entry = {
            "generation": self._generation,
            "place": self._newest,
            "time_us": time_us,
            "objects": names,
            "writer": self._writer,
        }
        if not self._store.create(self._entry_name(number), json.dumps(entry).encode()):
            # The answer to an attempt that succeeded may have been lost.
            found = self._entry(number)
            if (found["writer"], found["objects"]) != (self._writer, names):
                return False
        self._number = number
        return True

    def _withdraw(self, names: list[str]) -> None:
        """Deletes objects of ours that a newer generation does not know of. In the same generation they are the same as
        those of the other writer.
        """
        if self._entry(self._last_number())["generation"] > self._generation:
            self._store.delete(self._root + name for name in names)

    def _remove_generations(self) -> None:
        """Removes what generations before the newest one have delivered: it begins with the whole content."""
        if self._newest is None or self._newest.generation < self._generation or not self._has_older:
            return
        own = f"{self._name}-{self._generation:08}-"
        if self._generation > 1:
            listed = [name for name, _ in self._store.list(self._root.rstrip("/"))]
            begin = len(self._root)
            ours = [n for n in listed if n.rpartition("/")[2].startswith(f"{self._name}-") and _STATE not in n[begin:]]
            self._store.delete(n for n in ours if n.rpartition("/")[2] < own)
        fault("objects.removed")
        self._has_older = False

    def _fenced(self) -> Error:
        return error(
            "WRITER_FENCED",
            f'another process delivers to "{self._shown}" now',
            hint="Nothing is lost: it goes on where this one was.",
        )


def _place(delivery: Delivery) -> tuple[ObjectPath, RowFiles]:
    """Where the objects are, and what is in them. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    place = object_path(delivery.connector)
    assert place is not None
    known = sink_options(delivery.connector)
    return place, RowFiles(delivery, known, _object_name(delivery)[1])


def sink_options(connector: Mapping[str, str]) -> OptionSet:
    """The options of a sink that writes objects of the store that `connector` names."""
    return OptionSet(
        f"{connector['connector']} of sinks",
        (
            OptionSpec("path", "The URL of a directory, instead of bucket and path."),
            *store_specs(connector),
            OptionSpec(_NAME, "How names of objects begin and end; several sinks then share a directory."),
            *FILE_SPECS,
        ),
    )


def _object_name(delivery: Delivery) -> tuple[str, str | None]:
    """(what names begin with, what they end with, None: the format). Both without the option."""
    name = delivery.connector.get(_NAME, "")
    stem, point, ending = name.rpartition(".")
    return (f"{stem}.", ending) if point else (f"{name}." if name else "", "" if name else None)


def _append(delivery: Delivery, rows: pa.Table) -> None:
    """Makes one object of rows. Its name has the time, so that names are in that order."""
    place, files = _place(delivery)
    if not len(rows):
        return
    stem, _ = _object_name(delivery)
    now = f"{dt.datetime.now(dt.UTC):%Y%m%d%H%M%S%f}"
    ((name, rows),) = files.pieces(f"{stem}{now}-{secrets.token_hex(8)}", rows)
    data = io.BytesIO()
    files.write(data, rows)
    try:
        open_store(place.location).create((place / name).path, data.getvalue())
    except StoreProblem as problem:
        raise problem.as_error() from problem


def _check(delivery: Delivery) -> None:
    ObjectTarget(delivery, "")
    check_objects(delivery.connector)


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:
    del stopping
    return ObjectTarget(delivery, database_id)


CONNECTOR: Final = Connector(_check, _open, append=_append)
