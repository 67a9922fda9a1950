"""Features: each module contains one statement or a family of them, with classes, readers and handlers. They are
imported at the first statement that is neither a query nor DML.
"""
