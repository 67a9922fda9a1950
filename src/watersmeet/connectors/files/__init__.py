"""Files, on disks and in object stores: source, content as a table, targets."""
