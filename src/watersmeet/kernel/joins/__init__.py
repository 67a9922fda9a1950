"""What joins are made of: sides, pairs, residual conditions, nearest partners, what look-ups met."""
