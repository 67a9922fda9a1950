"""The code that the connectors of SQL databases share: servers, content of tables, targets, change data capture."""
