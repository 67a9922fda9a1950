"""Sessions turn SQL text into results: connections of PEP 249, the handlers of statements, the status."""
