"""Dialects turn SQL text into statements (`parsing.parse`). `binder` defines the meaning of queries.

A dialect is a small difference to one of sqlglot's grammars and a table of defaults (`semantics`); everything else is
shared.
"""
