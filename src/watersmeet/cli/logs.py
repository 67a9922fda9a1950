"""What long-running commands log: as text, or a JSON object a line for programs that read logs."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import Any, Final

from watersmeet.errors import Error, error

LEVELS: Final = ("debug", "info", "warning", "error")
#: What a record may carry beside its message.
_FIELDS: Final = ("epoch", "commit", "view", "relation", "condition", "state", "rows", "duration_us")


class JsonLines(logging.Formatter):
    """A record as an object: time (UTC), level, logger, message, and what it has of epoch, view, condition."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                found[name] = value
        if record.exc_info and record.exc_info[1] is not None:
            cause = record.exc_info[1]
            if isinstance(cause, Error):
                found.setdefault("condition", cause.condition)
            found["trace"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def log_as_json(level: str) -> None:
    """Writes what this process logs to standard error, an object a line. level: of Watersmeet's own records.

    INVALID_PARAMETER for a level that there is not.
    """
    if level.lower() not in LEVELS:
        raise error("INVALID_PARAMETER", f'unknown log level "{level}"', hint=f"The levels are {', '.join(LEVELS)}.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("watersmeet").setLevel(level.upper())
    logging.captureWarnings(capture=True)
