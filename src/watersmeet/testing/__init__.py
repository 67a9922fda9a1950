"""Text tests: the language of sqllogictest files and its runner. Shipped, so that users can test their views."""
