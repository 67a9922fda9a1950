"""Records that can't be decoded go to a topic of their own: SET error.policy='dlq' of Lenses, with a real broker."""

import pytest
from tests.kafkatopics import delivered, messages, partitions, rows, send
from tests.thorough import mostly_slow

from watersmeet.errors import Error
from watersmeet.system import process


def letters(broker, topic):
    """(key, value, headers) of each message."""
    return [(m.key(), m.value(), dict(m.headers() or ())) for m in messages(broker, topic)]


def said(topic, offset, reason):
    return {"topic": topic.encode(), "partition": b"0", "offset": b"%d" % offset, "reason": reason}


def test_bad_records_go_to_the_dead_letter_topic_once(broker, opened, named, topic):
    connection, name, dead = opened(), topic(), named("dead")
    send(broker, name, (b"a", b'{"n": 1}'), (b"b", b"no json"), (None, b'{"n": 2}'), (b"c", b'{"n": "x"}'))
    connection.execute("SET error.policy='dlq'")
    connection.execute(f"SET dead.letter.queue='{dead}'")
    connection.execute(f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
    assert rows(connection, f"SELECT _key, n FROM {name}") == [("a", 1)]
    delivered(connection)
    found = letters(broker, dead)
    assert [(key, value) for key, value, _ in found] == [
        (b"b", b"no json"),
        (None, b'{"n": 2}'),
        (b"c", b'{"n": "x"}'),
    ]
    shown = connection.execute(
        f"SELECT `offset`, reason FROM watersmeet.dead_letters WHERE topic = '{name}' ORDER BY `offset`"
    ).fetchall()
    assert [headers for *_, headers in found] == [said(name, offset, reason.encode()) for offset, reason in shown]
    assert [offset for offset, _ in shown] == [1, 2, 3]

    connection = opened(kafka={})  # goes on without the settings, and writes nothing twice
    send(broker, name, (b"d", b"["), (b"e", None), (b"f", b'{"n": 3}'))
    assert rows(connection, f"SELECT _key, n FROM {name} WHERE n IS NOT NULL") == [("a", 1), ("f", 3)]
    delivered(connection)
    assert [(key, value) for key, value, _ in letters(broker, dead)][3:] == [(b"d", b"[")]
    assert letters(broker, dead)[3][2]["offset"] == b"4"


def test_two_topics_share_a_dead_letter_topic_and_dropping_one_leaves_it(broker, opened, named, topic):
    connection, names, dead = opened(), (topic(), topic()), named("dead")
    connection.execute("SET error.policy='dlq'")
    connection.execute(f"SET dead.letter.queue='{dead}'")
    for name in names:
        connection.execute(f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
        send(broker, name, (b"k", b"bad"))
    delivered(connection)
    assert sorted(h["topic"].decode() for *_, h in letters(broker, dead)) == sorted(names)
    connection.execute(f"DROP TABLE {names[0]}")
    send(broker, names[1], (b"k", b"worse"))
    delivered(connection)
    assert letters(broker, dead)[2] == (b"k", b"worse", said(names[1], 1, letters(broker, dead)[0][2]["reason"]))


def test_what_is_refused(broker, opened, named, topic):
    connection, name, dead = opened(), named(), named("dead")
    connection.execute("SET error.policy='dlq'")
    for queue, why in (("", "needs a dead-letter topic"), (name, "can't be its own dead-letter topic")):
        connection.execute(f"SET dead.letter.queue='{queue}'")
        with pytest.raises(Error, match=why) as caught:
            connection.execute(f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
        assert caught.value.condition == "INVALID_PARAMETER"
        assert partitions(broker, name) is None
    connection.execute(f"SET dead.letter.queue='{dead}'")
    with pytest.raises(Error, match="does not exist"):
        connection.execute(
            f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON); SET defaults.topic.autocreate=true; "
            f"INSERT INTO x SELECT STREAM nothing FROM {name};"
        )
    assert partitions(broker, name) is None
    assert partitions(broker, dead) is None


def test_fail_stops_at_the_first_bad_record(broker, opened, topic):
    connection, name = opened(), topic()
    connection.execute("SET error.policy='fail'")
    connection.execute(f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
    send(broker, name, (b"a", b"bad"), (b"b", b'{"n": 1}'))
    [notice] = connection.execute("FLUSH").notices
    assert f"partition 0 of topic {name}, offset 0" in notice
    assert connection.execute(f"SELECT n FROM {name}").fetchall() == []
    connection.execute(notice.partition("continue: ")[2])
    connection.execute("FLUSH")
    assert connection.execute(f"SELECT n FROM {name}").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "point", mostly_slow(["kafka.commit", "kafka.begin", "kafka.produced", "kafka.committed", "sink.delivered"], 1)
)
def test_a_failure_at_any_step_writes_no_letter_twice_and_leaves_none_out(broker, opened, named, topic, point):
    connection, name, dead = opened(), topic(), named("dead")
    connection.execute("SET error.policy='dlq'")
    connection.execute(f"SET dead.letter.queue='{dead}'")
    connection.execute(f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
    failed = 0

    def fails(now):
        nonlocal failed
        if now == point and failed < 2:
            failed += 1
            raise OSError("gone for a moment")

    process.set_hook(fails)
    try:
        for n in range(6):
            send(broker, name, (b"k", b"bad %d" % n))
            connection.execute("FLUSH")
        delivered(connection)
    finally:
        process.set_hook(None)
    assert failed
    assert [value for _, value, _ in letters(broker, dead)] == [b"bad %d" % n for n in range(6)]
