"""The kernel: operators on changes, vectorised, without I/O, without a clock and without Spark.

Laws, which the tests in tests/unit/kernel check:

- An operator is a pure function of its input changes and its state. At every epoch the sum of all its
  outputs equals the batch result over the sum of all its inputs.
- Its result depends only on the multiset of input changes, not on their order or grouping: equal multisets produce
equal bytes of output and state.
- Nothing depends on hashes being distinct: keys and rows are compared as values.
- State is a sum of immutable runs. Merging runs never changes the sum of diffs of any row.
- The cost of an epoch grows with its changes and with the logarithm of the state, not with the history.

To read the code, begin in `runs` with `delta` (changes), `run` and `trace` (state) and `matching` (keys); then read
`operators`.
"""
