"""Kafka: client, topics as sources and as targets."""
