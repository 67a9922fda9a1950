"""What each dialect adds to the meaning of queries: one folder for each dialect."""
