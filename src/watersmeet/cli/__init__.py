"""The command line: run, shell, query, explain, test. No logic of the engine lives here."""
