"""MySQL and MariaDB: client, content of tables, target, change data capture by MariaDB's binary log."""
