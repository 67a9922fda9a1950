"""The code that Delta Lake and Iceberg share: client, options, source, comparison of columns."""
