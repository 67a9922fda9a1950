"""Changes as sorted runs: creating, merging, probing by key, storing as state, and cleaning them."""
