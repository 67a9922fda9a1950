"""RisingWave's dialect: RisingWave, "SQL commands"."""
