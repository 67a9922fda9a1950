"""Tables of lakes as sources: the rows of a version, and then what each new version adds."""
