"""Generated rows: the connector datagen, and the base of sources that make their rows at a pace."""
