"""Sink writers deliver the changes of relations, in batches, to targets outside of the database."""
