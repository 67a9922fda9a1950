"""SQLstream from topics to a topic and files, in process."""

import tests.shop as shop

import watersmeet


def test_a_script_from_topics_to_a_topic_and_files(broker, topic, tmp_path):
    shop.run(
        lambda: watersmeet.connect(tmp_path / "db", dialect="sqlstream", runtime="inprocess"), broker, topic, tmp_path
    )
