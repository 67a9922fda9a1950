"""The statements of SQL, one module a statement or family."""
