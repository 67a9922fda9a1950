"""The logical algebra of changelog relations.

A view is a tree of frozen nodes (`relations`) whose scalars (`scalars`) are typed DuckDB
expressions over column ids. A join is a point in a space of dimensions (kind, match, bound,
trigger, emit), not a class of its own; `rewrites` are pure functions from tree to tree.

The law: the consolidated output of a view equals the batch result of its tree over the current content of the relations
that it scans.
"""
