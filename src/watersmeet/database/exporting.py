"""Exports: a database as SQL, Parquet and JSON, from which `importing` makes another database with the same content.

An export is a folder, in a directory or an object store:

    manifest.json     the commit, the formats, each relation with the hash of its content, and the hash of each file
    definitions.sql   the statements that create all objects, for readers
    catalog.json      the same definitions as the database stores them
    plans.json        the compiled plans
    positions.json    how far inputs were read, and sinks and subscriptions were served; the numbers of sequences
    relations/        the rows of views and tables, of the latter those that the views reflect
    changes/          the rows of each later transaction
    history/          changes that sinks, subscriptions and views INTO streams have not received yet
    state/            the state of operators: the runs of each trace
    sources/, dead/   the memory of sources; dead letters
    verified/         the results of VERIFY

Parquet has no intervals: an interval is a struct. No file has the value of a secret.

An export is made from a copy of the database (`store.backup`), so it has one commit while another process writes. The
large files of the copy are links where the file system allows that. The manifest is written last: without it, a
folder can't be imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet
from watersmeet.catalog import Catalog, NamedSubscription, Query, Relation
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION
from watersmeet.connectors.base.targets import deliveries
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.plans import Plans
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.shares import RunRef, load
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.runtime.plans import load_circuit
from watersmeet.runtime.stages import stored_state
from watersmeet.store.backup import MAIN, Copy, check_target, forks_of
from watersmeet.store.changes import RelationChange, fitted, has_interval
from watersmeet.store.checkpoints import Moment, moment_at, newest_checkpoint
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.inplace import ContentHash, Needed, content_hash
from watersmeet.store.layout import DATABASE_FORMAT_VERSION, Layout, writer_files
from watersmeet.store.positions import Verifications, secret_names
from watersmeet.system.process import scratch_folder
from watersmeet.system.secretvalues import external_place, is_nameless, referred
from watersmeet.values.serialization import to_json
from watersmeet.values.types import arrow_schema

#: The version of this form of an export.
EXPORT_VERSION: Final = 1

MANIFEST: Final = "manifest.json"

#: The column of changes with the number of times that a row is added.
DIFF: Final = "_watersmeet_diff"

#: The size of a Parquet file, before it is compressed.
_FILE_BYTES: Final = 64 << 20

#: The entry of a Parquet file with the Arrow schema of its rows before intervals became structs.
_SCHEMA: Final = b"watersmeet.schema"

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_INTERVAL: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_PARTS: Final = tuple(_INTERVAL.names or ())

#: Reports what is being done.
Say = Callable[[str], None]


def silent(text: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class Exported:
    """The result of an export. secrets: the names of secrets that an import needs, with their uses. waiting: sinks and
    subscriptions that can't resume after an import, because changes that they have not received are no longer kept.
    left_out: other parts of the database that the export lacks.
    """

    commit: int
    relations: int
    size_bytes: int
    secrets: dict[str, list[str]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def export_database(
    source: Path | str, target: Path | str, script: Callable[[Catalog], str], say: Say = silent
) -> Exported:
    """Exports the newest commit of the database at a path or URL to another one, which must be empty. script: returns
    the statements that create the objects of a catalog.

    Raises INVALID_PARAMETER, DATABASE_FORMAT; TRANSACTION_STATE while a view is being filled.
    """
    layout, place = Layout(source, create=False, serves=False), storage.path_at(target)
    check_target(layout.root, place)
    with beside("export", place) as folder:
        say("copying the newest commit")
        _Linked(layout, folder / "db", CommitLog(layout)).run()
        with read_only(folder / "db") as copy:
            layout.serve_secrets()  # the copy has the same id, and no secrets
            return _Export(copy, layout, place, say).run(script)


@contextmanager
def beside(what: str, place: AnyPath) -> Iterator[Path]:
    """A temporary folder, next to a directory."""
    if isinstance(place, Path):
        storage.make_directory(place.parent)
    with scratch_folder(what, place.parent if isinstance(place, Path) else None) as folder:
        yield folder


@contextmanager
def read_only(path: Path) -> Iterator[OpenDatabase]:
    """A database, opened for reading."""
    with closing(opened(path)) as found:
        yield found


def opened(path: Path, *, rebuild: bool | None = None) -> OpenDatabase:
    """A database, opened for reading, or for writing if `rebuild` is given."""
    return OpenDatabase(path, read_only=rebuild is None, rebuild=bool(rebuild))


class _Linked(Copy):
    """A copy whose large files are links, where that is possible. It has no secrets."""

    def copy_folder(self, folder: str, *, upto: str | None = None) -> None:
        if folder != "secrets":
            super().copy_folder(folder, upto=upto)

    def _transfer(self, source: AnyPath, target: AnyPath, *, is_memory: bool) -> None:
        if isinstance(source, Path) and isinstance(target, Path) and source.parent.name == "segments":
            try:
                storage.make_directory(target.parent)
                os.link(source, target)
            except FileNotFoundError:
                raise
            except OSError:
                pass  # on another file system
            else:
                return
        super()._transfer(source, target, is_memory=is_memory)


class Files:
    """The files of a new export, with their hashes."""

    def __init__(self, root: AnyPath) -> None:
        self._root = root
        self.hashes: dict[str, list[Any]] = {}
        self.size_bytes = 0
        storage.make_directory(root)

    def put(self, name: str, data: bytes) -> None:
        """Writes a file."""
        folder, _, file = name.rpartition("/")
        place = self._root
        for part in folder.split("/") if folder else ():
            place = place / part
            storage.make_directory(place)
        storage.create_file(place / file, data, durable=True)
        self.hashes[name] = [len(data), hashlib.sha256(data).hexdigest()]
        self.size_bytes += len(data)

    def put_json(self, name: str, value: Any) -> None:
        """Writes a JSON file."""
        self.put(name, json.dumps(value, separators=(",", ":")).encode())


class _Tables:
    """Rows of one schema in numbered Parquet files of bounded size."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name = files, name
        self.names: list[str] = []
        self._pending: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, table: pa.Table) -> list[tuple[str, int, int]]:
        """Adds rows. Returns where they are: (file, first row, number of rows)."""
        pieces = []
        step = max(1, table.num_rows * _FILE_BYTES // max(1, table.nbytes))
        for first in range(0, max(1, table.num_rows), step):
            part = table.slice(first, step)
            if self._pending and (
                self._bytes + part.nbytes > _FILE_BYTES or not part.schema.equals(self._pending[0].schema)
            ):
                self.finish()
            pieces.append((self._file, self._rows, part.num_rows))
            self._pending.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
        return pieces

    def finish(self) -> None:
        """Writes the pending rows."""
        if self._pending:
            table, name = pa.concat_tables(self._pending), self._file
            sink = pa.BufferOutputStream()
            pq.write_table(_portable(table), sink, compression="zstd")
            self._files.put(name, sink.getvalue().to_pybytes())
            self.names.append(name)
            self._pending, self._rows, self._bytes = [], 0, 0

    @property
    def _file(self) -> str:
        return f"{self._name}-{len(self.names) + 1:04d}.parquet"


def _portable(table: pa.Table) -> pa.Table:
    """The table with structs instead of intervals, and its schema with the intervals as metadata."""
    if not any(has_interval(f.type) for f in table.schema):
        return table
    columns = [_without_intervals(col.flat(c)) for c in table.columns]
    return pa.table(columns, names=table.column_names, metadata={_SCHEMA: table.schema.serialize().to_pybytes()})


def restored(data: bytes) -> pa.Table:
    """The rows of a Parquet file of an export."""
    table = pq.read_table(pa.BufferReader(data))
    kept = (table.schema.metadata or {}).get(_SCHEMA)
    if kept is None:
        return table.replace_schema_metadata(None)
    schema = pa.ipc.read_schema(pa.py_buffer(kept))
    return pa.table([_with_intervals(col.flat(c), f.type) for c, f in zip(table.columns, schema, strict=True)], schema)


def _without_intervals(array: pa.Array) -> pa.Array:
    if not has_interval(array.type):
        return array
    if pa.types.is_list(array.type):
        offsets = pa.array(array.offsets.to_numpy(), pa.int32())
        return pa.ListArray.from_arrays(offsets, _without_intervals(array.values), mask=array.is_null())
    if pa.types.is_struct(array.type):
        parts = [_without_intervals(array.field(i)) for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(parts, names=[f.name for f in array.type], mask=array.is_null())
    values = np.frombuffer(array.buffers()[1], _INTERVAL)[array.offset : array.offset + len(array)]
    parts = [pa.array(np.ascontiguousarray(values[name])) for name in _PARTS]
    return pa.StructArray.from_arrays(parts, names=list(_PARTS), mask=array.is_null())


def _with_intervals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not has_interval(kind):
        return array
    if pa.types.is_list(kind):
        offsets = pa.array(array.offsets.to_numpy(), pa.int32())
        values = _with_intervals(array.values, kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_struct(kind):
        parts = [_with_intervals(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    values = np.zeros(len(array), _INTERVAL)
    for name in _PARTS:
        values[name] = array.field(name).fill_null(0).to_numpy()
    known = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    return pa.Array.from_buffers(kind, len(array), [pa.py_buffer(known), pa.py_buffer(values)])


class _Export:
    """One export. copy: the database as of one commit. origin: the database of which it is a copy."""

    def __init__(self, copy: OpenDatabase, origin: Layout, place: AnyPath, say: Say) -> None:
        self._layout, self._origin, self._say = copy.layout, origin, say
        self._log, self._segments, self._content = copy.log, copy.segments, copy.content
        self._catalog = copy.catalog
        self._head = self._log.head()
        self._moment = moment_at(self._log, self._catalog) if self._head else Moment(0, 0)
        self._epoch = self._log.last_epoch()
        if self._epoch is not None and self._epoch.frontier is not None and self._epoch.frontier.backfill is not None:
            raise error("TRANSACTION_STATE", "a view is being filled", hint="Export the database when it is ready.")
        self._deliveries = {d.id: d for d in deliveries(self._catalog)}
        self._needed: dict[str, int] = {}
        """The relations of which a reader needs the changes after a commit."""
        self._copied: dict[str, int] = {}
        self._files = Files(place)

    def run(self, script: Callable[[Catalog], str]) -> Exported:
        """Writes all files."""
        self._files.put("definitions.sql", script(self._catalog).encode())
        self._files.put_json("catalog.json", self._catalog.to_json())
        self._plans()
        self._note_writers()
        positions, waiting = self._positions()
        self._files.put_json("positions.json", positions)
        secrets, places = self._secrets()
        relations = self._relations()
        manifest = {
            "export": EXPORT_VERSION,
            "watersmeet": watersmeet.__version__,
            "format": DATABASE_FORMAT_VERSION,
            "state_format": STATE_FORMAT_VERSION,
            "id": self._layout.id,
            "commit": self._head,
            "time_us": self._log.read(self._head).time_us if self._head else 0,
            "writer": self._log.read(self._head).writer if self._head else 0,
            "relations": relations,
            "changes": self._changes(),
            "history": self._history(),
            "copied": self._copied,
            "state": self._state(),
            "secrets": secrets,
            "places": places,
            "waiting": waiting,
            "files": self._files.hashes,
        }
        text = json.dumps(manifest, indent=1)
        checked = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": manifest}
        self._files.put(MANIFEST, json.dumps(checked, indent=1).encode())
        left_out = self._left_out()
        return Exported(self._head, len(relations), self._files.size_bytes, secrets, waiting, left_out)

    def _left_out(self) -> list[str]:
        """The parts of the database that the export lacks, in words."""
        known = self._catalog.relations.values()
        ended = [r.title for r in known if isinstance(r, Query)]
        past = [r.title for r in known if isinstance(r, NamedSubscription) and r.begun < self._head]
        if self._catalog.retention_us:
            past.insert(0, "the database")
        return [
            *(f'fork "{fork.name}"' for fork in forks_of(self._origin)),
            *ended,
            *([f"commits before {self._head}, which {', '.join(past)} keeps"] if past else []),
        ]

    def _plans(self) -> None:
        circuit = None
        if self._epoch is not None and self._epoch.circuit is not None:
            circuit = json.loads(load_circuit(self._layout, self._epoch.circuit).text)
        producers = Plans(self._layout, self._log, self._catalog, 1).producers
        plans = {i: [json.loads(o.text) for o in operators] for i, operators in producers.items()}
        self._files.put_json("plans.json", {"circuit": circuit, "plans": plans})

    def _relations(self) -> dict[str, Any]:
        """Writes the rows of all stored relations."""
        found = {}
        with self._content.pinned(newest_checkpoint(self._layout, self._log).moment.head) as rows:
            for relation in self._catalog.relations.values():
                if not relation.is_stored:
                    continue
                self._say(f"rows of {relation.title}")
                tables = _Tables(self._files, f"relations/{_safe(relation)}")
                schema = arrow_schema(relation.columns, positional=False)
                tables.add(schema.empty_table())
                hashed = ContentHash()
                read = rows.rows(relation, self._moment.upto(relation), Needed())
                for batch in read.batches():
                    arrays = [c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)]
                    hashed += content_hash(arrays, np.ones(batch.num_rows, np.int64))
                    tables.add(pa.table(arrays, schema=schema))
                tables.finish()
                value = {"name": relation.shown, "kind": relation.what, "rows": hashed.rows, "hash": str(hashed)}
                found[relation.id] = {**value, "files": tables.names}
        return found

    def _changes(self) -> list[dict[str, Any]]:
        """Writes the transactions that no epoch has reflected."""
        found = []
        for number in range(self._moment.transaction + 1, self._head + 1):
            commit = self._log.read(number)
            if commit.kind != "transaction":
                continue
            known = self._catalog.relations
            written: dict[str, list[str]] = {}
            for relation_id, change in commit.relations.items():
                if relation_id in known and not known[relation_id].is_fed_by_circuit:
                    written[relation_id] = self._change("changes", number, known[relation_id], change)
            found.append({"relations": written})
        return found

    def _change(self, folder: str, number: int, relation: Relation, change: RelationChange) -> list[str]:
        """Writes the change of a relation in a commit. Returns the names of the files."""
        stored = relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        tables = _Tables(self._files, f"{folder}/{number:012d}-{_safe(relation)}")
        for blob in change.blobs:
            rows, diff = self._segments.read_change(blob)
            rows = fitted(rows, schema, stored.fills).cast(schema)
            names = [*(c.name for c in relation.columns), DIFF]
            tables.add(pa.table([*rows.columns, pa.array(np.ascontiguousarray(diff))], names=names))
        tables.finish()
        return tables.names

    def _history(self) -> list[dict[str, Any]]:
        """Writes the changes that readers still need, by commit, from the first one that any of them needs."""
        found: list[dict[str, Any]] = []
        for number in range(min(self._needed.values(), default=self._head) + 1, self._head + 1):
            commit = self._log.read(number)
            written = {}
            for relation_id, since in self._needed.items():
                relation = self._catalog.relations[relation_id]
                if since < number <= self._moment.upto(relation) and relation_id in commit.relations:
                    written[relation_id] = self._change("history", number, relation, commit.relations[relation_id])
            found.append({"number": number, "time_us": commit.moment_us, "relations": written})
        return found

    def _state(self) -> dict[str, Any]:
        """Writes the runs of all operators. Returns them by place, operator and trace."""
        epoch = self._epoch
        if epoch is None or epoch.circuit is None:
            return {}
        states = {p: stored_state(self._segments, s, p).operators for p, s in sorted(epoch.segments.items())}
        traces = sorted({(o, n) for operators in states.values() for o, t in operators.items() for n in t})
        found: dict[str, Any] = {p: {o: {} for o in operators} for p, operators in states.items()}
        for operator, name in traces:
            self._say(f"state of operator {operator}")
            tables = _Tables(self._files, f"state/{_UNSAFE.sub('_', operator)}-{_UNSAFE.sub('_', name)}")
            for place, operators in states.items():
                runs = [self._run(ref, tables) for ref in operators.get(operator, {}).get(name, ())]
                if runs:
                    found[place][operator][name] = [run for run in runs if run is not None]
            tables.finish()
        return found

    def _run(self, ref: RunRef, tables: _Tables) -> dict[str, Any] | None:
        run = load(ref, self._segments.read_blob(ref.blob))
        if not run.num_rows:
            return None
        return {"pieces": tables.add(run_table(run)), **_facts(run)}

    def _positions(self) -> tuple[dict[str, Any], list[str]]:
        """The positions of inputs and readers; and the readers that can't resume (`Exported.waiting`)."""
        layout, epoch = self._layout, self._epoch
        progress = {} if epoch is None else to_json(replace(epoch.progress, taken=self._taken()))
        newest = {f.id: f.path for f in writer_files(layout.sources)}
        for relation_id, path in newest.items():
            self._files.put(f"sources/{relation_id}{_ending(path)}", storage.read_file(path))
        for relation_id, data in Verifications(self._origin).stored(self._catalog.relations).items():
            self._files.put(f"verified/{relation_id}.json", data)
        for directory in layout.dead_directories():
            for name in storage.list_names(directory):
                self._files.put(f"dead/{directory.name}/{name}", storage.read_file(directory / name))
        head = self._log.read(self._head) if self._head else Commit("fence")
        served: dict[str, dict[str, Any]] = {}
        waiting: list[str] = []
        for kind in ("sinks", "subscriptions"):
            found = {f.id: layout.unseal(f.path) for f in writer_files(getattr(layout, kind))}
            served[kind] = {i: self._served(i, value, waiting) for i, value in found.items()}
        value = {
            "epoch": None if epoch is None else epoch.epoch,
            "sources": {} if epoch is None or epoch.frontier is None else epoch.frontier.sources,
            "progress": progress,
            "metrics": None if epoch is None else to_json(epoch.metrics),
            "captured": {i: p for i, p in head.captured.items() if i != MAIN},
            "rejected": head.rejected,
            "sequences": {f.id: layout.unseal(f.path) for f in writer_files(layout.sequences)},
            **served,
        }
        return value, waiting

    def _taken(self) -> dict[str, Any]:
        """The slices that epochs have read since the state of sources was saved."""
        saved = {f.id: f.path for f in writer_files(self._layout.sources)}.get("COMMIT")
        since = 0 if saved is None else int(json.loads(storage.read_file(saved))["commit"])
        epochs, commit = [], self._epoch
        while commit is not None and commit.number > since:
            epochs.append(commit)
            commit = self._log.epoch_before(commit)
        found: dict[str, Any] = {}
        for one in reversed(epochs):
            for relation_id, slices in one.progress.taken.items():
                found[relation_id] = (*found.get(relation_id, ()), *slices)
        return found

    def _served(self, relation_id: str, value: dict[str, Any], waiting: list[str]) -> dict[str, Any]:
        """The position of a sink or subscription, at the exported commit if it has received all changes until then."""
        relation = self._catalog.relations.get(relation_id)
        if relation is None:
            return value
        delivery = self._deliveries.get(relation_id)
        commits = [self._log.find(n) for n in range(int(value["since"]) + 1, self._head + 1)]
        if delivery is not None and delivery.dead_letters:
            missed = any(c is None or delivery.relation in c.progress.taken for c in commits)
        elif any(upto > int(value["since"]) for _, upto in value.get("former", ())):
            waiting.append(relation.reader)  # the predecessor of a view is not exported
            return value
        else:
            followed = relation_id if delivery is None else delivery.relation
            missed = any(c is None or followed in c.relations for c in commits)
        if not missed and value.get("upto") is None:
            return {**value, "since": self._head}
        follows = relation_id if delivery is None else delivery.relation
        has_rows = delivery is None or not delivery.dead_letters
        if has_rows and self._needs(follows, int(value["since"])):
            return value
        if delivery is None or int(value.get("commit", -1)) >= 0:
            waiting.append(relation.reader)
        return value

    def _needs(self, relation_id: str, since: int) -> bool:
        """Notes that a reader needs the changes of a relation after a commit. False if some of them are gone."""
        relation = self._catalog.relations.get(relation_id)
        if relation is None or since > self._moment.upto(relation):
            return False
        if any(self._log.find(n) is None for n in range(since + 1, self._head + 1)):
            return False
        self._needed[relation_id] = min(since, self._needed.get(relation_id, since))
        return True

    def _note_writers(self) -> None:
        """Notes the views whose output is not yet in the streams that they write."""
        for view in self._catalog.relations.values():
            if not view.feeds or view.feeds not in self._catalog.relations:
                continue
            since = self._head
            while since and (commit := self._log.find(since)) is not None:
                if view.id in commit.copied:
                    since = commit.copied[view.id]
                    break
                since -= 1
            commits = [self._log.find(n) for n in range(since + 1, self._head + 1)]
            changes = any(c is not None and view.id in c.relations for c in commits)
            if changes and self._needs(view.id, since):
                self._copied[view.id] = since

    def _secrets(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        """The names of the secrets that an import needs, each with its stored names, and the places of values outside
        of the database.
        """
        needed: dict[str, list[str]] = {}
        places: dict[str, str] = {}
        used = sorted(_references(self._catalog))
        names = {name for _, name in used} | {*secret_names(self._origin)}
        for name in sorted(names):
            with suppress(FileNotFoundError):
                value = str(self._origin.unseal(self._origin.secret(name)))
                if external_place(value) is not None:
                    places[name] = value
                    continue
            if not is_nameless(name):
                needed[name] = [name]
        for title, name in used:
            if is_nameless(name):
                needed.setdefault(title, []).append(name)
        return needed, places


def _references(catalog: Catalog) -> set[tuple[str, str]]:
    """The references to secrets in a catalog: where each is, and its name."""
    value = catalog.to_json()
    found: set[tuple[str, str]] = set()

    def search(part: Any, title: str) -> None:
        if isinstance(part, Mapping):
            for key, inner in part.items():
                search(inner, f"{title.partition('.')[0]}.{key}")
        elif isinstance(part, list):
            for inner in part:
                search(inner, title)
        elif isinstance(part, str) and (name := referred(part)) is not None:
            found.add((title, name))

    for relation, form in zip(catalog.relations.values(), value["relations"], strict=True):
        search(form, relation.shown)
    for role in value.get("roles", ()):
        search(role, role["name"])
    return found


def run_table(run: Run) -> pa.Table:
    """The rows of a run: the hashes, the columns, and the diffs unless all are 1."""
    arrays, names = [pa.array(run.hash), *run.arrays], ["_h", *(f"c{i}" for i in range(len(run.arrays)))]
    if run.weights is not None:
        arrays, names = [*arrays, pa.array(run.weights)], [*names, "_diff"]
    return pa.table(arrays, names=names)


def _facts(run: Run) -> dict[str, Any]:
    merging = None if run.merging is None else list(run.merging)
    return {"keys": run.keys, "pure": run.pure, "continues": run.continues, "note": run.note, "merging": merging}


def _safe(relation: Relation) -> str:
    """The name of a relation in names of files."""
    return f"{_UNSAFE.sub('_', relation.shown)[:80]}.{relation.id}"


def _ending(path: AnyPath) -> str:
    return f".{path.name.rpartition('.')[2]}"
