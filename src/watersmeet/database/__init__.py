"""One open database: its catalog, its plans, what it reads from outside, its engine."""
