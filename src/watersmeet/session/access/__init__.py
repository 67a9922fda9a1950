"""How a session reads and changes a database: its variables, transactions, rows and definitions."""
