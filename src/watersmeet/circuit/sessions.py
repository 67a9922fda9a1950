"""The operator that outputs the rows of a stream when their window closes.

Rows are read in the order of arrival, and rows of different keys are independent. So it depends only on the rows and
their order which rows a window has, and when it closes, and not on how the rows were divided into epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from watersmeet.circuit.operators import Window
from watersmeet.values.watermarks import NOW, Term, Watermark, shifted

#: The functions of windows that follow from the rows, with one value for each row of a session: the session's start and
#: end, and the arrival of the row that began it.
SESSION: Final = ("session_start", "session_end", "session_epoch", "session_seq")

#: The function of windows that the rows already have; it is true in each row that is output.
CLOSED: Final = "window_closed"

#: Further functions of these windows: the arrival of the first row of the window, which differs if it begins again.
FIRST_ROW: Final = ("window_epoch", "window_seq")

#: The functions of keys that expire, with one value for each row: the arrival of the key's first row.
KEY: Final = ("key_epoch", "key_seq")

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

    `KEY`: arguments (time). A row with which the span of the times of its key exceeds `frame.end` microseconds expires
    the key, and is its last row; the next row begins the key again. With `number` 1 keys with a lesser span are not
    output.

    `CLOSED`: arguments (time, end). A window closes when a row arrives whose time is at least `number` microseconds
    after its end; later rows of the window are dropped.

    With `idle_us` above 0, a window also closes, and a key also expires, once no row that waits has arrived for that
    long by the time of epochs, before the rows of the epoch. Its end is then as if a row had closed it at its latest
    end. Later rows begin a new window, even one with the same bounds.
    """

    kind: ClassVar[str] = "session"
    idle_us: int = 0

    @property
    def is_timed(self) -> bool:
        return bool(self.idle_us)

    @property
    def bound(self) -> Watermark:
        """The time before which, or at which, the last row of a window arrived that closes by itself."""
        return shifted((Term(NOW),), -self.idle_us)

    @property
    def comparison(self) -> Literal["<="]:
        """See `bound`."""
        return "<="
