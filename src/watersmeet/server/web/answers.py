"""Answers to requests: JSON, and errors as JSON with the status that fits."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from watersmeet.errors import Error, error

#: By condition, the status of an answer. Others are what the client asked for in the wrong way.
_STATUS: Final = {
    "AUTHENTICATION_FAILED": 401,
    "HISTORY_GONE": 410,
    "IDLE_TIMEOUT": 408,
    "INVALID_AUTHORIZATION": 403,
    "PERMISSION_DENIED": 403,
    "UNDEFINED_OBJECT": 404,
    "UNDEFINED_RELATION": 404,
    "TOO_MANY_CONNECTIONS": 503,
    "ADMIN_SHUTDOWN": 503,
    "INTERNAL_ERROR": 500,
}
_BAD_REQUEST: Final = 400
#: What is asked for is as new as the answer: nobody keeps it.
_NOT_KEPT: Final = {"Cache-Control": "no-store"}


def compact(value: Any) -> str:
    """JSON without spaces. A lone surrogate, which UTF-8 does not have, becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace").decode()


def answer(value: Any, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(text=compact(value), content_type="application/json", headers=_NOT_KEPT, status=status)


def failed(err: Error) -> web.Response:
    """The answer for an error."""
    return answer({"error": err.to_json()}, _STATUS.get(err.condition, _BAD_REQUEST))


def refused(request: web.Request, err: web.HTTPException) -> web.Response:
    """The answer for a request that nothing answers."""
    told = error("UNDEFINED_OBJECT", f"{request.path} is not served: {err.reason}")
    if isinstance(err, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(err.allowed_methods))
        told = error("INVALID_PARAMETER", f"{request.path} is not served by {request.method}", hint=f"Use {allowed}.")
    elif isinstance(err, web.HTTPRequestEntityTooLarge):
        told = error("INVALID_PARAMETER", "the body of the request is too large", detail=f"{err.text}.")
    response = failed(told)
    response.set_status(err.status)
    return response


async def read_json(request: web.Request, most_s: float) -> dict[str, Any]:
    """The object that a request has as its body. INVALID_PARAMETER; IDLE_TIMEOUT if it takes longer to arrive."""
    if request.content_type != "application/json":
        raise error("INVALID_PARAMETER", "a request has JSON as its body", hint="Content-Type: application/json")
    try:
        async with asyncio.timeout(most_s):
            body = await request.read()
    except TimeoutError:
        raise error("IDLE_TIMEOUT", "the client took too long to send the body of its request") from None
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise error("INVALID_PARAMETER", "the body of a request is not a JSON object")
    return found


def text_field(body: dict[str, Any], name: str) -> str:
    """A text of a request. INVALID_PARAMETER if it is missing."""
    value = optional_text(body, name)
    if value is None:
        raise error("INVALID_PARAMETER", f'a request needs a text "{name}"')
    return value


def optional_text(body: dict[str, Any], name: str) -> str | None:
    """A text of a request; None if it is missing. INVALID_PARAMETER for another value."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise error("INVALID_PARAMETER", f'"{name}" of a request must be a text')
    return value
