"""One open database: its content, catalog, plans and engine; and how sessions read, write and define relations."""
