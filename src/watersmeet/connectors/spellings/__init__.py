"""How dialects spell the options of connectors: external streams, foreign streams, foreign tables.

These readers stand next to the connectors, not in the folders of the dialects, because session statements call them for
any dialect that has these statements, and code outside of the folders of dialects names no dialect.
"""
