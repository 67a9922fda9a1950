"""Maintenance: creating and filling views, refreshing external content, writing the streams that views feed."""
