"""What SQLstream adds: ROWTIME, joins of streams by their clocks, groups that close."""
