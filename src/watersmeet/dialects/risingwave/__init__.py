"""RisingWave's grammar and statements."""
