"""What a query is bound in: the names in sight, how it is read, what binding finds, the hooks of dialects."""
