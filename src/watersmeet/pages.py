"""Hints to the machine about the pages of mapped files: which are needed next, and which are not.

They change no content. Where the machine does not take them, nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

import numpy as np
import numpy.typing as npt

_LIBC: Final = ctypes.CDLL(None)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_WILL_NEED: Final = 3
#: Of Linux, since 5.4 (MADV_PAGEOUT): also pages of files leave memory at once.
_LET_GO: Final = 21
#: What Linux reads for one such hint, unless it is set to more.
_AHEAD_BYTES: Final = 128 << 10

Addresses = npt.NDArray[np.int64]
"""Of each range of memory the first address, and the one behind it, as a row."""


def will_need(ranges: Addresses) -> None:
    """Begins to read mapped files; does not wait until they are read."""
    for begin, end in ranges.tolist():
        for first in range(begin, end, _AHEAD_BYTES):
            _advise(first, min(first + _AHEAD_BYTES, end), _WILL_NEED)


def let_go(ranges: Addresses) -> None:
    """Takes pages of mapped files out of memory; they are read again if they are needed after all."""
    if sys.platform == "linux":
        for begin, end in ranges.tolist():
            _advise(begin, end, _LET_GO)


def _advise(begin: int, end: int, advice: int) -> None:
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        _LIBC.madvise(first, end - first, advice)
