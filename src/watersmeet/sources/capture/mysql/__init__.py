"""Changes of MariaDB, by its binary log."""
