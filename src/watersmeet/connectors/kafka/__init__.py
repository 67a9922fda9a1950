"""Kafka: client, source and target."""
