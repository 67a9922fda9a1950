"""Binder: gives a parsed query its meaning, as a tree of the algebra."""

from __future__ import annotations

from watersmeet.dialects.binder.query import BoundQuery, bind_query

__all__ = ["BoundQuery", "bind_query"]
