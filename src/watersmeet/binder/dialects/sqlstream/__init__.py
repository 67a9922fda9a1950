"""SQLstream's additions: ROWTIME, joins of streams by their clocks, groups that close."""
