"""Conversions between bytes and columns: decoders for sources, encoders for sinks."""
