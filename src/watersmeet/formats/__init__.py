"""Bytes of messages and columns: decoders of what sources read, encoders of what sinks write."""
