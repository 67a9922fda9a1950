"""Libraries of the extra `kafka`, imported when they are used."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from watersmeet.errors import error


@cache
def library(name: str) -> ModuleType:
    """The module of that name. LIBRARY_MISSING, with what to type, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        raise error(
            "LIBRARY_MISSING",
            f"{name.partition('.')[0]} is not installed, which messages of this format need",
            hint='pip install "watersmeet[kafka]"',
        ) from cause
