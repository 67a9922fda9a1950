"""The files of a database: catalog, commits, segments of state and changes, snapshots; and reading them.

The commit log is the only truth: a file counts once a commit (or a checkpoint) names it, and a commit is one file that
is created in one step. All files that a commit names are written before it.
"""
