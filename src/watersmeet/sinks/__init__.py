"""Where results go: targets outside of the database, and what is delivered to them."""
