"""A limit on nesting: statements are read recursively, and Python's stack ends somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from watersmeet.errors import error


@contextmanager
def depth_checked(text: str) -> Iterator[None]:
    """FEATURE_NOT_SUPPORTED for a statement that is nested more deeply than it can be read."""
    try:
        yield
    except RecursionError:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the statement is nested too deeply",
            sql=text,
            hint="Split long chains of operators or parentheses into several views or columns.",
        ) from None
