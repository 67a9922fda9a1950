"""The state of one session: its variables, rights and transaction, the statement that it runs and its result."""
