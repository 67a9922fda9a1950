"""Subscribers: the changes of relations, commit by commit, for `Connection.subscribe`, SUBSCRIBE and cursors."""
