"""Window functions over the rows of a partition."""
