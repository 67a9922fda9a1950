"""Sessions: from SQL text to results. Connections and cursors of PEP 249, and what each statement does."""
