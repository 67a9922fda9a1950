"""SQLstream s-Server's dialect: SQLstream, "JOIN clause", SS-01 to SS-71."""
