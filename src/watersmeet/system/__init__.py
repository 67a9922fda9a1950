"""The process and its machine: files, memory, libraries, connections of DuckDB, secrets. These modules are independent
of databases.
"""
