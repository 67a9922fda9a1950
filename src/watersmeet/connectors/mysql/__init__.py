"""MySQL and MariaDB: client, types, content of tables, target, change data capture from MariaDB's binary log."""
