"""Features: a statement each, or a family, with its class, reader and handler. They are imported at the first statement
that is neither a query nor DML.
"""
