"""Imports: a new database from an export (`exporting`).

The database continues the log above the exported commit. So positions of sinks, tokens of subscribers, and the moments
at which queries began keep their meaning. Of earlier commits it has the changes that a reader had not received.

One commit has the definitions, one epoch the state and the positions of sources. All rows are in a checkpoint, so no
new commit changes a relation, and readers of changes receive none. Transactions that no epoch had reflected follow.

Each file is read once, and checked while it is read. The database is written next to its target and renamed when all
its contents have the exported hashes, or written to a temporary folder and copied to an object store. So an interrupted
import leaves nothing that can be opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets as random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from watersmeet import planner
from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.operators import Operator
from watersmeet.database.exporting import (
    DIFF,
    EXPORT_VERSION,
    MANIFEST,
    Say,
    beside,
    opened,
    read_only,
    restored,
    silent,
)
from watersmeet.database.rebuild import plans_made_anew
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.run import Merging, Run
from watersmeet.kernel.runs.shares import RunRef, hot_keys
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.runtime.plans import begin_parallelism, save_circuit
from watersmeet.runtime.stages import section_of
from watersmeet.store.backup import check_target, copy_database
from watersmeet.store.changes import ChangeWriter, RelationChange
from watersmeet.store.checkpoints import Checkpoint, Level, Moment, Snapshot, save_checkpoint
from watersmeet.store.commits import CommitLog, saving
from watersmeet.store.layout import Layout, check_id, format_text, make_root, writer_file
from watersmeet.store.manifests import Commit, Frontier, Metrics, Process, Progress
from watersmeet.store.positions import Verifications, create_secret
from watersmeet.store.readers import LowWaterMark, raise_low_water
from watersmeet.store.segments import SegmentWriter, epoch_prefix, snapshot_prefix, transaction_prefix
from watersmeet.values.serialization import from_json, to_json

#: The parts of names of files.
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

_SINKS: Final = "sinks"
_SEQUENCES: Final = "sequences"


@dataclass(frozen=True)
class Imported:
    """The result of an import. waiting: see `exporting.Exported`."""

    commit: int
    relations: int
    waiting: list[str]


def import_database(
    source: Path | str,
    target: Path | str,
    secrets: Mapping[str, str],
    *,
    rebuild: bool = False,
    say: Say = silent,
) -> Imported:
    """Makes a database at a path or URL, which must be empty, from an export. secrets: the values of its secrets.
    rebuild: plan all views again and compute their state from their inputs, instead of taking over the state.

    Raises INVALID_PARAMETER, also for missing secrets; DATABASE_DAMAGED; STATE_MISMATCH for state of another form;
    FEATURE_NOT_SUPPORTED for a view whose state can't be computed again.
    """
    root, place = storage.path_at(source), storage.path_at(target)
    check_target(root, place)
    export = _Files(root)
    _check_form(export.manifest, rebuild=rebuild)
    values = _given(export.manifest, secrets)
    with beside("import", place) as folder:
        made = folder / "db"
        _Import(export, made, say).run(values, rebuild=rebuild)
        export.check_others()
        if rebuild:
            say("computing the state of all views")
            opened(made, rebuild=True).close()
        say("comparing contents")
        commit = _compare(made, export.manifest)
        if isinstance(place, Path):
            os.rename(made, place)
        else:
            copy_database(made, target)
    return Imported(commit, len(export.manifest["relations"]), list(export.manifest["waiting"]))


class _Files:
    """The files of an export."""

    def __init__(self, root: AnyPath) -> None:
        """Raises INVALID_PARAMETER if there is no complete export, DATABASE_DAMAGED."""
        self._root = root
        try:
            text = storage.read_file(root / MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            hint = f"An export has a file {MANIFEST}, which is written last."
            raise error("INVALID_PARAMETER", f"there is no complete export at {root}", hint=hint) from None
        try:
            value = json.loads(text)
            self.manifest: dict[str, Any] = value["manifest"]
            found = hashlib.sha256(json.dumps(self.manifest, indent=1).encode()).hexdigest()
            is_whole = found == value["sha256"]
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise _damaged(MANIFEST, "its content is not what was written")
        _check_names(part for name in self.manifest["files"] for part in name.split("/"))
        self._table = lru_cache(2)(lambda name: restored(self.read(name)))
        self._read: set[str] = set()

    def check_others(self) -> None:
        """Checks the files that were not read. Raises DATABASE_DAMAGED."""
        for name in self.manifest["files"].keys() - self._read:
            self.read(name)

    def read(self, name: str) -> bytes:
        """The content of a file, which has the hash of the manifest. Raises DATABASE_DAMAGED."""
        self._read.add(name)
        size, wanted = self.manifest["files"][name]
        place = self._root
        for part in name.split("/"):
            place = place / part
        try:
            data = storage.read_file(place)
        except FileNotFoundError:
            raise _damaged(name, "it is missing") from None
        if len(data) != size or hashlib.sha256(data).hexdigest() != wanted:
            raise _damaged(name, "its content is not what was written")
        return data

    def json(self, name: str) -> Any:
        """The value of a JSON file."""
        return json.loads(self.read(name))

    def table(self, name: str) -> pa.Table:
        """The rows of a Parquet file."""
        found: pa.Table = self._table(name)
        return found

    def within(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        return [name for name in self.manifest["files"] if name.startswith(f"{folder}/")]


def _check_names(names: Iterable[str]) -> None:
    """Raises DATABASE_DAMAGED for a name that would be a file in another folder: an export is untrusted input."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise _damaged(MANIFEST, f'"{name}" is no name of a file')


def _damaged(name: str, reason: str) -> Error:
    return error("DATABASE_DAMAGED", f"{name} of the export is damaged: {reason}", hint="Export the database again.")


def _check_form(manifest: Mapping[str, Any], *, rebuild: bool) -> None:
    version = manifest["export"]
    if version != EXPORT_VERSION:
        raise error(
            "DATABASE_FORMAT",
            f"the export has version {version}, this release reads version {EXPORT_VERSION}",
            hint=f"Use release {manifest['watersmeet']} of Watersmeet, or a newer one.",
        )
    if manifest["state_format"] != STATE_FORMAT_VERSION and not rebuild:
        raise error(
            "STATE_MISMATCH",
            f"the export has state of format {manifest['state_format']}, this release has {STATE_FORMAT_VERSION}",
            hint="With --rebuild, the import computes the state of all views from their inputs.",
        )


def _given(manifest: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, str]:
    """The values of secrets by their stored names. Raises INVALID_PARAMETER, naming all missing ones."""
    needed: dict[str, list[str]] = manifest["secrets"]
    missing, unknown = sorted(needed.keys() - secrets.keys()), sorted(secrets.keys() - needed.keys())
    if missing:
        example = json.dumps(dict.fromkeys(missing, "…"), ensure_ascii=False)
        raise error(
            "INVALID_PARAMETER",
            f"the import needs secrets, of which an export has no values: {', '.join(missing)}",
            hint=f"Write them to a file, and name it with --secrets: {example}",
        )
    if unknown:
        raise error("INVALID_PARAMETER", f"the database has no secrets {', '.join(unknown)}")
    places: dict[str, str] = manifest["places"]
    return {name: secrets[title] for title, names in needed.items() for name in names} | places


def _compare(path: Path, manifest: Mapping[str, Any]) -> int:
    """Compares all contents with the exported hashes. Returns the number of the newest commit."""
    with read_only(path) as database:
        catalog, log = database.catalog, database.log
        epoch = log.last_epoch()
        for relation_id, wanted in manifest["relations"].items():
            relation = catalog.relations[relation_id]
            upto = log.head()
            if not relation.is_fed_by_circuit and epoch is not None and epoch.frontier is not None:
                upto = epoch.frontier.transaction
            found = database.content.content_hash(relation, upto)
            if (found.rows, str(found)) != (wanted["rows"], wanted["hash"]):
                raise _damaged(relation.title, f"it has {found.rows} rows with hash {found}, not those of the manifest")
        return log.head()


class _Import:
    """One import into a new directory."""

    def __init__(self, export: _Files, path: Path, say: Say) -> None:
        self._export, self._say = export, say
        self._manifest = export.manifest
        make_root(path, "private")
        storage.create_file(path / "FORMAT", format_text(self._manifest["id"]), durable=True)
        self._layout = Layout(path, serves=False)
        self._catalog = Catalog.from_json(export.json("catalog.json"))
        self._positions = export.json("positions.json")
        self._known = self._catalog.relations

    def run(self, secrets: Mapping[str, str], *, rebuild: bool) -> None:
        """Writes all files."""
        for name, value in secrets.items():
            create_secret(self._layout, name, value)
        self._begin()
        self._log = CommitLog(self._layout, writer=True)
        circuit = self._plans(rebuild=rebuild)
        contents = self._contents()
        transaction = self._definitions()
        if circuit is not None:
            self._epoch(circuit, transaction, with_state=not rebuild)
        self._checkpoint(contents)
        self._changes()
        self._services()

    def _begin(self) -> None:
        """Begins the log with the exported commit and the ones before it that readers still need."""
        layout, history, head = self._layout, self._manifest["history"], max(1, int(self._manifest["commit"]))
        begin = int(history[0]["number"]) - 1 if history else head
        if begin < 1:
            begin, history = 1, history[1:]
        if begin > 1:
            raise_low_water(layout, LowWaterMark(), begin - 1, ())
        writer = max(1, int(self._manifest["writer"]))
        first = Commit(
            "fence",
            time_us=int(self._manifest["time_us"]) or time.time_ns() // 1000,
            process=Process(os.getpid(), os.uname().nodename),
            number=begin,
            writer=writer,
            token=random.token_hex(8),
            catalog=f"{self._catalog.version:012d}-{writer + 1}",  # as the next writer stores them
            follows=self._catalog.follows_epochs,
        )
        self._create(first)
        for value in history:
            number = int(value["number"])
            files = SegmentWriter(layout.segments, transaction_prefix(number, writer), durable=True)
            found = {i: self._written(files, self._known[i], names) for i, names in value["relations"].items()}
            made = replace(first, kind="transaction", process=None, number=number, last_transaction=number)
            copied = self._manifest["copied"] if number == head else {}
            relations = _within(found, files.finish())
            self._create(replace(made, time_us=int(value["time_us"]), relations=relations, copied=copied))

    def _create(self, commit: Commit) -> None:
        path = self._layout.commit(commit.number)
        storage.create_file(path, self._layout.seal(path, to_json(commit)), durable=True)

    def _plans(self, *, rebuild: bool) -> Circuit | None:
        """Saves the plans of all views. Returns the circuit of the exported epoch."""
        value = self._export.json("plans.json")
        if value["circuit"] is None:
            return None
        if rebuild:
            plans = dict(plans_made_anew(self._catalog))
            failed = from_json(Progress, self._positions["progress"]).failed
            circuit = planner.assemble(plans.values(), value["circuit"]["buckets"]).without(failed)
        else:
            plans = {i: from_json(tuple[Operator, ...], operators) for i, operators in value["plans"].items()}
            circuit = from_json(Circuit, value["circuit"])
        for relation_id, operators in plans.items():
            path = self._layout.plan(relation_id, self._log.writer)
            form = {"state_format": STATE_FORMAT_VERSION, "operators": [json.loads(o.text) for o in operators]}
            storage.create_file(path, self._layout.seal(path, form), durable=True)
        save_circuit(self._layout, circuit)
        begin_parallelism(self._layout, circuit.buckets)
        return circuit

    def _contents(self) -> dict[str, RelationChange]:
        """Writes the content of all relations."""
        prefix = snapshot_prefix(self._log.head(), self._log.writer)
        writer = SegmentWriter(self._layout.segments, prefix, durable=True)
        found = {}
        for relation_id, value in self._manifest["relations"].items():
            relation = self._known[relation_id]
            self._say(f"rows of {relation.title}")
            found[relation_id] = self._written(writer, relation, value["files"])
        return _within(found, writer.finish())

    def _definitions(self) -> int:
        """Commits the definitions, as a transaction that changes no row. Returns its number."""
        with saving(self._layout, self._log, self._catalog) as name:
            return self._log.append(
                Commit(
                    "transaction",
                    captured=self._positions["captured"],
                    rejected=self._positions["rejected"],
                    catalog=name,
                    follows=self._catalog.follows_epochs,
                )
            ).number

    def _checkpoint(self, contents: Mapping[str, RelationChange]) -> None:
        """Makes the rows the content as of the newest commit."""
        head = self._log.head()
        found = {
            i: Snapshot(head, change.inserted_rows, (Level(change.blobs, insert_only=True),) if change.blobs else ())
            for i, change in contents.items()
        }
        time_us = self._log.read(head).time_us
        checkpoint = Checkpoint(Moment(head, head), found, self._catalog.next_number, time_us=time_us)
        save_checkpoint(self._layout, self._log, checkpoint)

    def _written(self, writer: SegmentWriter, relation: Relation, names: Iterable[str]) -> RelationChange:
        blobs = ChangeWriter(writer, unread=False, lasting=True)
        columns = [c.name for c in relation.as_stored.columns]
        for name in names:
            rows, diff = self._export.table(name), None
            if rows.column_names[-1:] == [DIFF]:
                diff = np.array(col.words(col.flat(rows.column(DIFF))))
                rows = rows.drop_columns([DIFF])
            blobs.add(rows.rename_columns(columns), diff)
        return blobs.finish()

    def _epoch(self, circuit: Circuit, transaction: int, *, with_state: bool) -> None:
        """Commits the state and the positions of sources."""
        positions, number = self._positions, int(self._positions["epoch"])
        progress = from_json(Progress, positions["progress"])
        self._log.append(
            Commit(
                "epoch",
                epoch=number,
                frontier=Frontier(transaction, positions["sources"]),
                segments=dict(self._states(number)) if with_state else {},
                circuit=circuit.fingerprint,
                progress=progress if with_state else replace(progress, split={}),
                metrics=from_json(Metrics, positions["metrics"]),
                follows=self._catalog.follows_epochs,
            )
        )

    def _states(self, epoch: int) -> Iterator[tuple[str, str]]:
        """Writes the state of all places, trace by trace, as the files of the export have it: so each is read once.
        Returns each place and its segment.
        """
        state: dict[str, dict[str, dict[str, Any]]] = self._manifest["state"]
        writers = {
            place: SegmentWriter(
                self._layout.segments, epoch_prefix(epoch, self._log.writer, *map(int, place.split("/"))), durable=True
            )
            for place in state
        }
        found: dict[str, dict[str, dict[str, tuple[RunRef, ...]]]] = {p: {o: {} for o in state[p]} for p in state}
        for operator, name in sorted({(o, n) for traces in state.values() for o in traces for n in traces[o]}):
            self._say(f"state of operator {operator}")
            for place, writer in writers.items():
                runs = state[place].get(operator, {}).get(name)
                if runs is not None:
                    found[place][operator][name] = tuple(self._run(run, writer) for run in runs)
        for place, writer in writers.items():
            yield place, writer.finish({place: section_of(StateManifest(found[place]))})

    def _run(self, value: Mapping[str, Any], writer: SegmentWriter) -> RunRef:
        pieces = [self._export.table(name).slice(first, rows) for name, first, rows in value["pieces"]]
        table = pa.concat_tables(pieces).combine_chunks()
        has_diff = table.column_names[-1] == "_diff"
        weights = col.words(col.flat(table.column("_diff"))) if has_diff else None
        columns = table.select(range(1, table.num_columns - has_diff))
        run = Run(
            col.flat(table.column(0)).to_numpy(),
            columns,
            weights,
            tuple(value["keys"]),
            pure=value["pure"],
            continues=value["continues"],
            note=value["note"],
        )
        merging = None if value["merging"] is None else Merging(*value["merging"])
        return RunRef(writer.add(run.stored(filters=True), run.num_rows), hot=hot_keys(run), merging=merging)

    def _changes(self) -> None:
        """Commits the transactions that no epoch had reflected."""
        for change in self._manifest["changes"]:
            prefix = transaction_prefix(self._log.head() + 1, self._log.writer)
            writer = SegmentWriter(self._layout.segments, prefix, durable=True)
            found = {i: self._written(writer, self._known[i], names) for i, names in change["relations"].items()}
            relations = _within(found, writer.finish())
            self._log.append(Commit("transaction", relations=relations))

    def _services(self) -> None:
        """Writes the positions of sinks and subscriptions, the numbers of sequences, and the memory of sources."""
        layout, writer = self._layout, self._log.writer
        for folder in (_SINKS, "subscriptions", _SEQUENCES):
            for relation_id, value in self._positions[folder].items():
                path = writer_file(layout.root / folder, check_id(relation_id), writer)
                storage.create_file(path, layout.seal(path, self._begun(value, folder)), durable=True)
        for name in self._export.within("sources"):
            file, _, ending = name.removeprefix("sources/").rpartition(".")
            path = writer_file(layout.sources, file, writer, f".{ending}")
            storage.create_file(path, self._export.read(name), durable=True)
        verified = Verifications(layout)
        for name in self._export.within("verified"):
            verified.restore(check_id(name.removeprefix("verified/").removesuffix(".json")), self._export.read(name))
        for name in self._export.within("dead"):
            _, relation_id, file = name.split("/")
            storage.make_directory(layout.dead(relation_id))
            storage.create_file(layout.dead(relation_id) / file, self._export.read(name), durable=True)

    def _begun(self, value: dict[str, Any], folder: str) -> dict[str, Any]:
        """A position. That of a reader that had received all changes is the newest commit; a sink that has delivered
        nothing begins with the content of the newest commit.
        """
        head = self._log.head()
        if folder == _SINKS and int(value.get("commit", -1)) < 0 and value.get("start") is not None:
            return {**value, "start": head, "since": head, "base": self._log.read(head).checkpoint}
        if folder != _SEQUENCES and value["since"] == self._manifest["commit"]:
            return {**value, "since": head} | ({"taken": head} if "taken" in value else {})
        return value


def _within(changes: Mapping[str, RelationChange], segment: str) -> dict[str, RelationChange]:
    return {i: change.within(segment) for i, change in changes.items()}
