"""Files of directories: source, content, targets. Objects of stores are read and written by the same code."""
