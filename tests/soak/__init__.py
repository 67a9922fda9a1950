"""A soak: a database works for minutes or hours, with faults, and must stay right and as small as it was.

`python -m tests.soak --minutes 60 --rate 20` (`--help` lists the options). The parent writes the inputs, does harm and
measures; a child has the database, so that it can be killed and so that its memory is its own.
"""
