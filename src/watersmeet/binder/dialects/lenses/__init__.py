"""What Lenses adds: queries over records, which have keys and times."""
