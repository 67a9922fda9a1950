"""The logical algebra of changelog relations.

A view is a tree of frozen nodes (`nodes`) whose scalars (`scalars`) are typed DuckDB expressions over column ids.
`rewrites` are pure functions from tree to tree.

The law: the consolidated output of a view always equals the batch result of its tree over the current content of the
relations that it scans.
"""
