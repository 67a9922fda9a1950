"""The kernel: operators on changes, vectorised, without I/O, without a clock and without Spark."""
