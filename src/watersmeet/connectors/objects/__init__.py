"""Objects of S3 and other stores as tables and targets; `files` reads them as sources."""
