"""Sources: where rows come from.

On the driver, `connectors.open_source(relation)` gives a `base.Source`: it finds input and cuts it into
slices, within a budget. In workers, `reading.read_slice` gives a slice's rows as Arrow and sets aside what
can't be read (`dead_letters`). Laws: no input is ever skipped without being counted and shown; no row is given
twice; a slice read again gives the same rows; cutting the input otherwise gives the same rows.
"""
