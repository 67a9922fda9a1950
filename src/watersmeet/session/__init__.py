"""Sessions: from SQL text to results. PEP 249, statements with their handlers, status."""
