"""What Timeplus adds: joins by what their sides are, ranges of times, dictionaries, settings."""
