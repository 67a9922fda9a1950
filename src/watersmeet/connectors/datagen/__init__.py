"""Generated rows: the connectors datagen and nexmark."""
