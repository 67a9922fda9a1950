"""Clients of what sources and sinks talk to: the libraries, which are extras, and what their errors mean."""
