"""SQLstream s-Server's dialect: document 001, FEATURES SS-01 to SS-71."""
