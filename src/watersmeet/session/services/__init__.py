"""What goes on beside statements: queries that run, streams and dictionaries that follow, status."""
