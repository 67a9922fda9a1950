"""What a database keeps on disk: catalog, commits, packs of state and changes, snapshots, and how they're read.

The commit log is the only truth: a file counts once a commit (or a checkpoint) names it, and a
commit is one file that appears in one step. Everything a commit names is written before it.
"""
