"""An open database with its content, catalog, plans and engine; sessions read, write and define its relations."""
