"""The file source, which finds files and new content of growing files, and cuts it into slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from watersmeet.catalog import Relation
from watersmeet.connectors.base.deadletters import shown_name
from watersmeet.connectors.base.sources import History, Notification, Poll, no_withdrawal
from watersmeet.connectors.files.cutting import Cut, ListedFile, aside_piece, next_cut, renaming_piece, text_cut
from watersmeet.connectors.files.listing import (
    FileStat,
    Listing,
    ObjectListing,
    check_read,
    is_same_file,
    key_of,
    open_listed,
    other_names,
    present_stat,
    renamed_files,
)
from watersmeet.connectors.files.options import FileOptions, FileSpec, file_options
from watersmeet.connectors.files.parquet import read_footer
from watersmeet.connectors.files.seen import FileState, Key, RunOf, SeenFiles, print_at
from watersmeet.errors import error
from watersmeet.objectstores.base import ObjectReplacedError, StoreProblem
from watersmeet.values.slices import AsideSlice, FileSlice, RenamingSlice, SourceSlice

MAX_SLICES: Final = 1000
"""The maximum number of slices per poll, which keeps intents small."""
SHOWN: Final = 20
_RETRY_US: Final = 2_000_000
#: The rows and bytes of slices of files that are read again, so that a history has the same slices.
_AGAIN_ROWS: Final = 1 << 13
_AGAIN_BYTES: Final = 1 << 20


class _Again(NamedTuple):
    """An offset in the slices of files that are read again: the number of the pass from 1, the cursor of the history,
    and the number of finished slices of this piece of history.
    """

    number: int = 1
    cursor: list[Any] | None = None
    passed: int = 0


class FileSource:
    """Files of a directory (or one file) as an append-only stream, in order of (time stamp, name) or of times in names.

    Laws: every byte of every file is read once, or counted in `status` and rejected with a reason. A file that is
    replaced under its name, or only renamed (`listing`), is not read again. With the option `repeat` all files are read
    again that number of times, and new files are then ignored. See `base.sources.Source` for the life of a source.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation_id = relation.id
        self.options = file_options(relation)
        self._regex = self.options.names
        self.seen = SeenFiles(self.options.path_identity)
        self._columns = tuple(c for c in relation.columns if c.name not in relation.message_parts)
        self._parts = {c.name: p for c in relation.columns if (p := relation.message_parts.get(c.name)) is not None}
        self._names = [column.name for column in self._columns]
        self._key = relation.primary_key
        self._listing = open_listing(self.options)
        self._work: dict[str, FileStat] = {}
        """Files that may have unread content."""
        self._order: list[str] | None = None
        self._since_us: dict[str, int] = {}
        """The time at which a file of `_work` was first listed in its present state."""
        self._blocked: dict[str, tuple[FileStat, bool, int | None]] = {}
        """For files without a slice: the state, whether incomplete content waits, and the time of the next attempt."""
        self._growing: set[str] = set()
        """Files of `_work` to which content was appended after a part had been read."""
        self._vanished: dict[str, FileStat] = {}
        self._replaced: dict[str, FileStat] = {}
        self._problems: dict[str, str] = {}
        self._lost: set[str] = set()
        """Files that a history could not read again."""
        self._unchecked: set[str] = set()
        """Names that the next listing must compare even if their entries don't change."""
        self._renamed: dict[str, str] = {}
        """New names by old ones until they are committed; then the next poll compares these names again."""
        self._looks_again = False
        self._links: dict[str, str] = {}
        """Additional names of files, with the names by which they are read."""

    def spec(self) -> FileSpec:
        return FileSpec(self._columns, self._key, self.options, self._parts)

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        self._check(position)
        if self.seen.again:
            return self._poll_again(position, budget_rows, budget_bytes, now_us)
        if fresh or self._looks_again or self._listing.is_due(now_us):
            self._look(now_us, full=fresh)
        if self._renamed:
            # This is returned by a separate poll, because the next slices depend on it.
            renaming = renaming_piece(self.relation_id, self._renamed).at(self.seen.slices)
            return Poll((renaming,), self._position(1), more=True)
        if self.options.max_rows_per_epoch is not None:
            budget_rows = min(budget_rows, self.options.max_rows_per_epoch)
        pieces: list[FileSlice | AsideSlice] = [
            aside_piece(self._listed(name, stat), "vanished", self._unread(name, stat))
            for name, stat in list(self._vanished.items())[:MAX_SLICES]
        ]
        more = len(self._vanished) > len(pieces)
        for name in self._by_time():
            if budget_rows <= 0 or budget_bytes <= 0 or len(pieces) >= MAX_SLICES:
                more = more or self._is_ready(name, now_us)
                if more:
                    break
                continue
            if self._is_away:
                break  # the message is logged once, not for each object
            for piece in self._cuts(name, now_us, budget_rows, budget_bytes):
                fits = piece.rows <= budget_rows and piece.size_bytes <= budget_bytes
                if (pieces and not fits) or len(pieces) >= MAX_SLICES:
                    more, budget_rows = True, 0
                    break
                pieces.append(piece)
                budget_rows -= piece.rows
                budget_bytes -= piece.size_bytes
        pieces = [piece.at(ordinal) for ordinal, piece in enumerate(pieces, self.seen.slices)]
        waiting = [again for _, waits, again in self._blocked.values() if waits]
        times = [again for again in waiting if again is not None]
        if self.options.repeat and self.seen.read and not (pieces or more or self._work):
            return self._poll_again(position, budget_rows, budget_bytes, now_us)
        more = more or (bool(pieces) and self.options.repeat > 0)
        return Poll(tuple(pieces), self._position(len(pieces)), more, len(waiting), min(times, default=None))

    def listen(self, notification: Notification) -> None:
        """Directories send no notifications. Listings of objects set the notification when they end."""
        if isinstance(self._listing, ObjectListing):
            self._listing.listen(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        pieces = list(slices)
        self.seen.apply(pieces)
        for piece in pieces:
            if isinstance(piece, RenamingSlice):
                self._renamed, self._looks_again = {}, True
                self._unchecked.update(name for names in piece.names for name in names)
        for name in {piece.path for piece in pieces if isinstance(piece, (FileSlice, AsideSlice))}:
            self._vanished.pop(name, None)
            stat = self._listing.files.get(name)
            state = self.seen.files.get(name)  # None if a later slice of these renamed the file
            if (
                stat is None
                or state is None
                or (state.is_done and (state.size, state.mtime_ns) == (stat.size, stat.mtime_ns))
            ):
                self._forget_work(name)

    def withdraw(self, slices: Sequence[SourceSlice]) -> None:
        if any(isinstance(piece, RenamingSlice) for piece in slices if piece.ordinal < self.seen.slices):
            raise no_withdrawal(self.relation_id, "Files have been renamed since.")
        for name, state in self.seen.withdraw(slices).items():
            if self.options.store is not None:
                continue  # an object has the same fingerprints as before
            with suppress(OSError), open_listed(self.options, name, FileStat(0, state.consumed, state.inode)) as file:
                head, tail = (print_at(file, state.consumed, tail=part) for part in (False, True))
                self.seen.put(name, state._replace(head=head, tail=tail))

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        if not isinstance(cursor, dict):
            once = self._history_once(cursor, budget_rows, budget_bytes)
            if once.cursor is not None or not self.seen.again:
                return once
            ordinal = once.slices[-1].ordinal + 1 if once.slices else (cursor or [0])[-1]
            return History(once.slices, {"offset": _Again(), "given": 0, "ordinal": ordinal})
        given, ordinal = cursor["given"], cursor["ordinal"]
        most = self.seen.again - given
        pieces, offset = self._again(_Again(*cursor["offset"]), most, budget_rows, budget_bytes, ends=False)
        slices = tuple(piece.at(n) for n, piece in enumerate(pieces, ordinal))
        if len(pieces) == most:
            return History(slices, None)
        return History(slices, {"offset": offset, "given": given + len(pieces), "ordinal": ordinal + len(pieces)})

    def _poll_again(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int) -> Poll:
        """The slices after all files were read. If they are repeated endlessly, another poll is due after each pass."""
        repeat, at = self.options.repeat, _Again(*(position or {}).get("again", ()))
        if 0 <= repeat < at.number:
            return Poll((), position)
        pieces, offset = self._again(at, MAX_SLICES, budget_rows, budget_bytes, ends=True)
        ended = offset.number > at.number
        slices = tuple(piece.at(n) for n, piece in enumerate(pieces, self.seen.slices))
        more = not ended or offset.number <= repeat
        next_us = now_us if ended and repeat < 0 else None
        return Poll(slices, self._position(len(pieces)) | {"again": offset}, more, next_us=next_us)

    def _again(
        self, offset: _Again, most: int, budget_rows: int, budget_bytes: int, *, ends: bool
    ) -> tuple[list[FileSlice | AsideSlice], _Again]:
        """The slices of files that are read again from `offset` on, and the offset at which to continue.

        most: the maximum number of slices. ends: whether the last slice of a pass ends the source.
        """
        pieces: list[FileSlice | AsideSlice] = []
        while len(pieces) < min(most, MAX_SLICES):
            step = self._history_once(offset.cursor, _AGAIN_ROWS, _AGAIN_BYTES)
            for piece in step.slices[offset.passed :]:
                fits = piece.rows <= budget_rows and piece.size_bytes <= budget_bytes
                if len(pieces) >= min(most, MAX_SLICES) or (pieces and not fits):
                    return pieces, offset
                assert isinstance(piece, (FileSlice, AsideSlice))
                pieces.append(replace(piece, again=offset.number))
                budget_rows -= piece.rows
                budget_bytes -= piece.size_bytes
                offset = offset._replace(passed=offset.passed + 1)
            if step.cursor is not None:
                offset = _Again(offset.number, step.cursor)
                continue
            offset = _Again(offset.number + 1)
            if ends:
                break
        return pieces, offset

    def _history_once(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        """The history of all files as they were read the first time."""
        run, consumed, lines, ordinal = cursor or (0, None, 0, 0)
        runs = self.seen.runs(run)
        now = next(runs, None)
        pieces: list[FileSlice | AsideSlice] = []
        while now is not None and len(pieces) < MAX_SLICES:
            piece = self._history_piece(now, consumed, lines, budget_rows, budget_bytes)
            if piece is None:
                run, consumed, now = run + 1, None, next(runs, None)
                continue
            if pieces and (piece.rows > budget_rows or piece.size_bytes > budget_bytes):
                break
            pieces.append(piece.at(ordinal))
            ordinal += 1
            budget_rows -= piece.rows
            budget_bytes -= piece.size_bytes
            if isinstance(piece, AsideSlice):
                self._lost.add(now.name)
                run, consumed, now = run + 1, None, next(runs, None)
            else:
                consumed, lines = piece.end, piece.line - 1 + piece.lines
                if consumed >= now.consumed:
                    run, consumed, now = run + 1, None, next(runs, None)
            if budget_rows <= 0 or budget_bytes <= 0:
                break
        return History(tuple(pieces), None if now is None else [run, consumed, lines, ordinal])

    def save(self, path: Path) -> None:
        self.seen.save(path)

    def load(self, path: Path) -> None:
        self.seen = SeenFiles.load(path, self.options.path_identity)

    def status(self) -> dict[str, Any]:
        """Counters, lists of names (cut to `SHOWN`) and the `problem` of the whole directory for SHOW: JSON.

        `partial`: files without some of the declared columns, which are NULL, each with those.
        `history_lost`: files that were read but no longer exist for a view that was created later.
        """
        partial_files, partial = self.seen.lacking(SHOWN)
        unreadable = sorted((self._listing.not_read | self._problems).items())
        problem = self._listing.problem
        waiting = {"state": "waiting", "reason": problem} if self._is_away else {}
        return waiting | {
            "files": self.seen.read,
            "rows_planned": self.seen.rows,
            "bytes": self.seen.bytes,
            "backlog_bytes": sum(
                self._unread(name, stat)
                for name, stat in self._work.items()
                if name not in self._blocked or self._blocked[name][1]
            ),
            "pending_files": sum(waits for _, waits, _ in self._blocked.values()),
            "replaced_files": len(self._replaced),
            "replaced": _shown(self._replaced),
            "renamed_files": self.seen.renamed,
            "linked_files": len(self._links),
            "vanished_files": self.seen.aside.get("vanished", 0) + len(self._vanished),
            "damaged_files": self.seen.aside.get("damaged", 0),
            "partial_files": partial_files,
            "partial": [[shown_name(name), list(lacks)] for name, lacks in partial],
            "history_lost_files": len(self._lost),
            "history_lost": _shown(self._lost),
            "unreadable_files": len(unreadable),
            "unreadable": [[shown_name(name), why] for name, why in unreadable[:SHOWN]],
            "problem": None if problem is None else shown_name(problem),
        }

    @property
    def _is_away(self) -> bool:
        """Whether objects can't be read for now."""
        return self.options.store is not None and self._listing.problem is not None

    def _listed(self, name: str, stat: FileStat) -> ListedFile:
        return ListedFile(self.relation_id, name, stat)

    def _check(self, position: Any) -> None:
        expected = 0 if position is None else position["slices"]
        if expected != self.seen.slices:
            damage = error(
                "DATABASE_DAMAGED",
                f"the list of files read, sources/{self.relation_id}-*.saved, ends at slice {self.seen.slices}; "
                f"the database has slice {expected}",
                detail="The file is damaged or missing.",
                hint="Restore that file from a backup, or drop the source and create it again.",
            )
            damage.source = self.relation_id
            raise damage

    def _position(self, more: int) -> dict[str, int]:
        """The position after a number of further slices."""
        return {"slices": self.seen.slices + more}

    def _look(self, now_us: int, *, full: bool) -> None:
        """Updates `_work` from the directory."""
        changed = self._listing.look(now_us, set(self._work), full=full)
        changed |= self._unchecked
        if not changed:
            return
        self._unchecked, self._looks_again = set(), False
        self._order = None
        files = self._listing.files
        changed |= self._find_links()
        self._renamed, undecided = renamed_files(self.options, changed - self._links.keys(), files, self.seen)
        here = {self._kind_of(stat) for stat in files.values()} if changed - files.keys() else set()
        for name in changed:
            stat = files.get(name)
            if stat is None:
                self._gone(name, here)
                continue
            self._vanished.pop(name, None)
            if name in undecided:
                self._forget_work(name)
                self._unchecked.add(name)
                self._problems[name] = undecided[name]
            elif name in self._links or name in self._renamed.values():
                self._forget_work(name)
            elif self._has_news(name, stat):
                self._work[name] = stat
                self._since_us[name] = now_us
            else:
                self._forget_work(name)

    def _find_links(self) -> set[str]:
        """Finds files that have several names; returns the names that must be compared again."""
        before = self._links
        self._links = other_names(self.options, self._listing.files, self.seen)
        again = {name for name in before.keys() | self._links.keys() if before.get(name) != self._links.get(name)}
        return again | self._renamed.keys() | set(self._renamed.values())

    def _kind_of(self, stat: FileStat) -> Key:
        """The identity of an unread file under a new name."""
        return key_of(self.options, stat) or stat.inode

    def _gone(self, name: str, here: set[Key]) -> None:
        """Handles a deleted name: unread content becomes a dead letter, unless the file was only renamed."""
        stat = self._work.get(name)
        blocked = self._blocked.get(name)
        state = self.seen.files.get(name)
        moved = stat is not None and (state is None or not state.is_read) and self._kind_of(stat) in here
        renamed = name in self._renamed or moved
        if stat is not None and not renamed and (blocked is None or blocked[1]):
            self._vanished[name] = stat
        self._forget_work(name)

    def _forget_work(self, name: str) -> None:
        for memory in (self._work, self._since_us, self._blocked, self._problems):
            memory.pop(name, None)
        self._growing.discard(name)

    def _has_news(self, name: str, stat: FileStat) -> bool:
        """True if the file has unread content. Also records replaced files."""
        state = self.seen.files.get(name)
        self._replaced.pop(name, None)
        if state is None or (state.aside is not None and not state.is_read):
            same_aside = state is not None and (state.size, state.mtime_ns) == (stat.size, stat.mtime_ns)
            return stat.size > 0 and not (same_aside and state is not None and state.aside != "vanished")
        if (state.size, state.mtime_ns) == (stat.size, stat.mtime_ns) and state.inode in (0, stat.inode):
            return not state.is_done or state.aside == "vanished"
        try:
            with open_listed(self.options, name, stat) as file:
                same = is_same_file(file, stat.size, state)
        except OSError:
            self._unchecked.add(name)
            return False
        if not same:
            self._replaced[name] = stat
            return False
        return stat.size > state.consumed if state.total is None else not state.is_done

    def _unread(self, name: str, stat: FileStat) -> int:
        state = self.seen.files.get(name)
        if state is None or not state.is_read:
            return stat.size
        if state.total is None:
            return max(0, stat.size - state.consumed)
        return stat.size * (state.total - state.consumed) // max(state.total, 1)

    def _by_time(self) -> list[str]:
        """The files with work, oldest first."""
        if self._order is None:
            self._order = sorted(self._work, key=self._rank)
        elif len(self._order) > 2 * len(self._work):
            self._order = [name for name in self._order if name in self._work]
        return [name for name in self._order if name in self._work]

    def _rank(self, name: str) -> tuple[float, str, str]:
        """The order of files: by the time in their names, or the time of their last change."""
        regex, form = self._regex, self.options.sorted_by
        if form is None or regex is None:
            return self._work[name].mtime_ns, "", name
        found = regex.fullmatch(name)
        text = (found[1] if found else None) or ""
        if form:
            with suppress(ValueError):  # files without a valid time come after all others
                return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp(), "", name
        return (float("inf") if form else 0.0), text, name

    def _is_ready(self, name: str, now_us: int) -> bool:
        blocked = self._blocked.get(name)
        if blocked is None or blocked[0] != self._work[name]:
            return True
        return blocked[2] is not None and now_us >= blocked[2]

    def _cuts(self, name: str, now_us: int, budget_rows: int, budget_bytes: int) -> Iterator[FileSlice | AsideSlice]:
        """Yields the next slices of a file, each within the budget."""
        if not self._is_ready(name, now_us):
            return
        try:
            with open_listed(self.options, name, self._work[name]) as file:
                self._problems.pop(name, None)
                yield from self._cuts_of(file, name, now_us, budget_rows, budget_bytes)
        except (FileNotFoundError, ObjectReplacedError):
            # The next listing shows whether it was renamed, or the present state of the object.
            self._block(name, waits=True, again_us=now_us + _RETRY_US)
        except StoreProblem as problem:
            assert isinstance(self._listing, ObjectListing)
            self._listing.fail(problem, now_us)
        except OSError as problem:
            self._problems[name] = problem.strerror or str(problem)
            self._block(name, waits=True, again_us=now_us + _RETRY_US)
        except Exception as problem:
            # An unexpected problem of this file must not stop other files and sources.
            self._problems[name] = f"{type(problem).__name__}: {problem}"
            self._block(name, waits=True, again_us=now_us + _RETRY_US)

    def _cuts_of(
        self, file: BinaryIO, name: str, now_us: int, budget_rows: int, budget_bytes: int
    ) -> Iterator[FileSlice | AsideSlice]:
        listed, known = self._work[name], self.seen.files.get(name)
        stat = present_stat(file, listed)
        if stat != listed:
            # It changed since the last listing; the next listing determines whether it is the same file.
            self._since_us[name] = now_us
            if (stat.inode, stat.size >= listed.size) != (listed.inode, True):
                return
            if known is not None and known.is_read and not is_same_file(file, stat.size, known):
                return
            self._work[name] = stat
        state = FileState() if known is None or not known.is_read else known
        settle_us = self.options.settle_ms * 1000
        settles_us = min(self._since_us[name], stat.mtime_ns // 1000) + settle_us
        settled = now_us >= settles_us
        given_up_us = settles_us + self.options.incomplete_ms * 1000
        if known is not None and known.is_read and stat.size > known.size:
            self._growing.add(name)
        while True:
            cut: Cut = next_cut(
                file,
                self._listed(name, stat),
                state,
                self.options,
                budget_rows=max(1, budget_rows),
                budget_bytes=max(1, budget_bytes),
                settled=settled,
                grows=name in self._growing,
                given_up=now_us >= given_up_us,
            )
            check_read(file)
            piece = cut.piece
            if piece is None:
                again_us = given_up_us if cut.needs_line_end else None if settled else settles_us
                self._block(name, waits=cut.waits, again_us=again_us if cut.waits else None)
                return
            self._blocked.pop(name, None)
            if isinstance(piece, FileSlice) and not state.is_read:
                piece = replace(piece, lacks=self._lacking(file, piece))
            yield piece
            state = state.advanced(piece)
            budget_rows -= piece.rows
            budget_bytes -= piece.size_bytes
            if (
                isinstance(piece, AsideSlice)
                or (state.is_done and state.total is not None)
                or state.consumed >= stat.size
            ):
                return

    def _lacking(self, file: BinaryIO, piece: FileSlice) -> tuple[str, ...]:
        """The declared columns that a file with the first slice `piece` lacks. For JSON it is empty, because any field
        may be missing.

        A file that lacks all columns is rejected and not included.
        """
        found: Iterable[str] | None = piece.header
        if self.options.format == "parquet":
            footer = read_footer(file, piece.version.size_bytes)
            check_read(file)
            found = None if footer is None else footer.names
        known = None if found is None else {n.lower() for n in found}
        lacks = () if known is None else tuple(n for n in self._names if n.lower() not in known)
        return lacks if len(lacks) < len(self._names) else ()

    def _block(self, name: str, *, waits: bool, again_us: int | None) -> None:
        self._blocked[name] = (self._work[name], waits, again_us)

    def _history_piece(
        self, run: RunOf, consumed: int | None, lines: int, budget_rows: int, budget_bytes: int
    ) -> FileSlice | AsideSlice | None:
        """The next slice of a run from `consumed` (None: the beginning); None at the end of the run."""
        name, end = run.name, run.consumed
        known = self.seen.files[name]
        if consumed is None:
            consumed, lines = run.before or (known.start, known.start_line)
        elif consumed >= end:
            return None
        listed = self._listed(name, FileStat(known.mtime_ns, known.size, known.inode, etag=known.head[1]))
        state = known._replace(consumed=consumed, lines=lines, unterminated=False)
        try:
            with open_listed(self.options, name, listed.stat) as file:
                if not is_same_file(file, present_stat(file, listed.stat).size, known):
                    return aside_piece(listed, "replaced", known.size)
                rows, size = max(1, budget_rows), max(1, budget_bytes)
                if known.total is None:
                    cut = text_cut(file, listed, state, self.options, rows, size, end=end, settled=True)
                else:
                    cut = next_cut(file, listed, state, self.options, budget_rows=rows, budget_bytes=size, settled=True)
                check_read(file)
        except FileNotFoundError:
            return aside_piece(listed, "vanished", known.size)
        except ObjectReplacedError:
            return aside_piece(listed, "replaced", known.size)
        if isinstance(cut.piece, FileSlice) and known.total is not None:
            return replace(cut.piece, end=min(cut.piece.end, end))
        return cut.piece


def open_listing(options: FileOptions) -> Listing | ObjectListing:
    """The listing of a source's files, in a directory or an object store."""
    return Listing(options) if options.store is None else ObjectListing(options)


def _shown(names: Iterable[str]) -> list[str]:
    """The first names of a list, for JSON."""
    return [shown_name(name) for name in sorted(names)[:SHOWN]]
