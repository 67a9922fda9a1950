"""The operator that outputs the rows of a stream when their window closes.

Rows are read in the order of arrival, and rows of different keys are independent. So it depends only on the rows and
their order which rows a window has, and when it closes, and not on how the rows were divided into epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from watersmeet.circuit.operators import Window

#: The functions of windows that follow from the rows, with one value for each row of a session: the session's start and
#: end, and the arrival of the row that began it.
SESSION: Final = ("session_start", "session_end", "session_epoch", "session_seq")

#: The function of windows that the rows already have; it is true in each row that is output.
CLOSED: Final = "window_closed"

#: The function that is true in the first row of each session, which is output when it arrives; no other row is.
FIRST: Final = "session_first"


@dataclass(frozen=True)
class SessionWindow(Window):
    """The rows of closed windows, with the values of `functions`. The rows of open windows are its state.

    Each row of a closed window is output once, in the epoch in which the window closes; other rows never are. All
    functions have the same arguments and order, which is that of `Arrivals`, the newest row first.

    `SESSION`: arguments (time, opens, closes), where opens and closes are boolean columns. A row that opens begins a
    session if none is open. It has the later rows up to the first one whose time is at least `frame.start` microseconds
    after the greatest time of the session, or at least `frame.end` microseconds after its first row, or that closes.
    That row may begin the next session. `number` has bit 0 if the first row belongs to the session, and bit 1 if the
    row that closes does. The end of a session is the greatest time plus `frame.start`, or the time of the first row
    plus `frame.end`, whichever is less; or else the greatest time up to the row that closes.

    `FIRST`: arguments and sessions as for `SESSION`; the first row is output at once, and the only one that is kept.

    `CLOSED`: arguments (time, end). A window closes when a row arrives whose time is at least `number` microseconds
    after its end; later rows of the window are dropped.
    """

    kind: ClassVar[str] = "session"
