"""SQLstream's additions: ROWTIME, joins of streams by their clocks, and groups that are output when they close."""
