"""The jars of Spark's own Kafka source and sink, and of its readers of lakes."""

from __future__ import annotations

from scripts.servers.archives import Artifact, Bundle

#: What `spark.jars.packages` would fetch, without the 60 MB of it that PySpark has.
SPARK_KAFKA = Bundle(
    "spark-sql-kafka-4.1.1",
    (
        Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.1", with_dependencies=False),
        Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.1", with_dependencies=False),
        Artifact("org.apache.kafka", "kafka-clients", "3.9.1", with_dependencies=False),
        Artifact("org.apache.commons", "commons-pool2", "2.12.1", with_dependencies=False),
    ),
    size_mb=10,
)

#: What reads tables of lakes in Spark.
SPARK_LAKES = Bundle(
    "spark-lakes-4.1",
    (
        Artifact("io.delta", "delta-spark_4.1_2.13", "4.2.0", with_dependencies=False),
        Artifact("io.delta", "delta-storage", "4.2.0", with_dependencies=False),
        Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0", with_dependencies=False),
    ),
    size_mb=60,
)
