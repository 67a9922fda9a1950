"""The binder: turns a parsed query into a tree of the algebra."""

from __future__ import annotations

from watersmeet.binder.context.binding import BoundQuery
from watersmeet.binder.emission import bind_view, check_request, request_of
from watersmeet.binder.query import bind_query

__all__ = ["BoundQuery", "bind_query", "bind_view", "check_request", "request_of"]
