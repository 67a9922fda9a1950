"""SQLstream from topics to a topic and files, on Spark."""

import pytest
import tests.shop as shop

import watersmeet

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_script_from_topics_to_a_topic_and_files(broker, topic, tmp_path):
    shop.run(lambda: watersmeet.connect(tmp_path / "db", dialect="sqlstream", parallelism=2), broker, topic, tmp_path)
