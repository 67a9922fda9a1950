"""Real servers on loopback for tests, the demo and `make kafka`: a Kafka broker and a schema registry.

They need Python and Java alone: what they run is fetched once by the Ivy that comes with Spark (`archives`).
A server ends with the process that owns it, however that one ends (`process`).
"""
