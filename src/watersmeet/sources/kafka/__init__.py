"""Topics of Kafka as sources."""
