"""The connectors of systems that carry messages: NATS JetStream, Kinesis, MQTT. Kafka has its own package."""
