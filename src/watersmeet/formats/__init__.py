"""Bytes of messages and columns: decoders for sources, encoders for sinks."""
