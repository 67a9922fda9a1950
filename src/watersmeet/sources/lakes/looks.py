"""Asking the log of a table for new versions; if it is far, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from watersmeet.errors import Error
from watersmeet.sources.lakes.versions import LakeLog, LakeProblem, Mark, Step
from watersmeet.sources.news import News

#: The most versions of a look.
MOST_STEPS: Final = 100
#: How long who asks for what is there now waits for a table that is far.
_WAIT_S: Final = 10
#: When a table that is near is asked again, and one that could not be read.
_NEAR_US: Final = 100_000
RETRY_US: Final = 2_000_000


class Looks:
    """What follows a version. refresh_us: how often a table that is far is asked; None for one that is near."""

    def __init__(self, log: LakeLog, refresh_us: int | None) -> None:
        self._log = log
        self._refresh_us = refresh_us
        self._next_us = 0
        self._thread: threading.Thread | None = None
        self._found: tuple[Mark | None, Sequence[Step] | LakeProblem] | None = None
        self._news: News | None = None

    def listen(self, news: News) -> None:
        """From now on `news` is told when a look is over."""
        self._news = news

    def after(self, mark: Mark | None, now_us: int, *, fresh: bool) -> Sequence[Step] | LakeProblem | None:
        """The versions that follow; mark None: the newest one as a whole. None: nobody has looked since the last time.

        fresh: look now.
        """
        if self._refresh_us is None:
            if not fresh and now_us < self._next_us:
                return None
            return self._taken(self._looked(mark), now_us)
        if fresh:
            self._wait()  # for one that may have begun too early
            self._begin(mark)
            if not self._wait():
                return LakeProblem("the table does not answer", passes=True)
        elif self._found is None and self._thread is None and now_us >= self._next_us:
            self._begin(mark)
        found = self._found
        if found is None:
            return None
        self._found = None
        return self._taken(found[1], now_us) if found[0] == mark else None

    def _taken(self, found: Sequence[Step] | LakeProblem, now_us: int) -> Sequence[Step] | LakeProblem:
        if isinstance(found, LakeProblem):
            wait_us = RETRY_US
        else:
            wait_us = 0 if found else _NEAR_US if self._refresh_us is None else self._refresh_us
        self._next_us = now_us + wait_us
        return found

    def _looked(self, mark: Mark | None) -> Sequence[Step] | LakeProblem:
        try:
            return [self._log.snapshot(None)] if mark is None else self._log.after(mark, MOST_STEPS)
        except LakeProblem as problem:
            return problem
        except Error as problem:
            return LakeProblem(problem.message, passes=False)

    def _begin(self, mark: Mark | None) -> None:
        self._found = None
        self._thread = threading.Thread(target=self._look, args=(mark,), name="watersmeet-lake", daemon=True)
        self._thread.start()

    def _wait(self) -> bool:
        """Whether no look is under way any more."""
        thread = self._thread
        if thread is not None:
            thread.join(_WAIT_S)
        return self._thread is None

    def _look(self, mark: Mark | None) -> None:
        try:
            self._found = (mark, self._looked(mark))
        except Exception as cause:  # of libraries, which have no common base
            self._found = (mark, LakeProblem(f"{type(cause).__name__}: {cause}", passes=True))
        self._thread = None
        if self._news is not None:
            self._news.tell()
