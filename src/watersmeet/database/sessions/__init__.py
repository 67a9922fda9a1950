"""The state of a session: its variables, rights and transaction, its current statement and the result."""
