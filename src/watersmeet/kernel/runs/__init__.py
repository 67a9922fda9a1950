"""Changes as sorted runs: made, merged, probed by key, kept as state, forgotten."""
