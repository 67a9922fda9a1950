"""The files of a database (catalog, commits, segments of state and changes, snapshots) and how they are read.

Only the commit log counts: a file is part of the database once a commit (or a checkpoint) names it, and a commit is one
file that is created in one step. All files that a commit names are written before it.
"""
