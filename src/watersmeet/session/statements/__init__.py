"""The statements of SQL, one module for each statement or family."""
