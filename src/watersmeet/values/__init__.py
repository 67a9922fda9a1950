"""Values that every layer shares: types, times, watermarks, slices, and how they are stored. No input or output."""
