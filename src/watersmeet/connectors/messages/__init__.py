"""The connectors of NATS JetStream, Kinesis, MQTT and Redis. Kafka has its own package."""
