"""Identity: a connection, a token and a stream are of one user as it logged in, and end with it."""

from __future__ import annotations

import socket
import threading

import psycopg
import pytest
from tests.unit.server.conftest import Served
from tests.waiting import until

from watersmeet.catalog.roles import PutRole, RemoveRole, RenameRole, Role, changed
from watersmeet.server.clients import Limits
from watersmeet.server.users import Guesses
from watersmeet.system.passwords import Verifier

SHOP = """
CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1);
CREATE USER ann PASSWORD 'x' IN ROLE reader; CREATE USER adam PASSWORD 'x' SUPERUSER; CREATE ROLE analysts;
GRANT analysts TO ann; GRANT SELECT ON t TO analysts; FLUSH;
"""
#: It takes minutes.
SLOW = "SELECT count(*) FROM generate_series(1, 100000) AS a(x), generate_series(1, 100000) AS b(y) WHERE x + y < 0"


def as_user(served: Served, name: str, **options) -> psycopg.Connection:
    dsn = served.dsn.replace("someone", name)
    return psycopg.connect(dsn, **{"password": "x", "autocommit": True, **options})


def is_ended(client: psycopg.Connection) -> bool:
    """Whether the server has hung up, without anything sent to it."""
    with socket.socket(fileno=socket.dup(client.fileno())) as reader:
        reader.settimeout(30)
        while reader.recv(1000):
            pass
    return True


#: Statements after which a user is another one, or may not log in as it did.
CHANGES = {
    "dropped": "DROP USER ann; CREATE USER ann PASSWORD 'x' SUPERUSER",
    "barred": "ALTER USER ann NOLOGIN",
    "new password": "ALTER USER ann PASSWORD 'x'",
    "renamed": "ALTER USER ann RENAME TO other; CREATE USER ann PASSWORD 'x' SUPERUSER",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_user_ends_connections_tokens_and_streams(serving, change):
    served = serving(SHOP, http_port=0)
    token = served.http("/api/login", method="POST", user="ann:x").json["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    assert served.http("/api/topology", headers=bearer).status == 200
    with (
        as_user(served, "ann") as one,
        as_user(served, "ann") as idle,
        as_user(served, "adam") as adam,
        served.events("/subscribe?view=t", bearer) as events,
        served.events("/api/live?session=x", bearer) as tab,
    ):
        assert events.next("snapshot").data["complete"] and tab.next("snapshot")
        adam.execute(change)
        with pytest.raises(psycopg.errors.AdminShutdown, match='"ann" was dropped, renamed'):
            one.execute("SELECT 1")
        assert is_ended(idle)
        assert served.http("/api/topology", headers=bearer).status == 401
        assert not list(tab) and all(e.name == "failed" for e in events)
        assert adam.execute("SELECT 1").fetchone() == (1,)


def test_the_first_user_ends_all_that_was_trusted(serving):
    served = serving("CREATE TABLE t (a int)", http_port=0)
    with (
        served.connect(autocommit=True) as idle,
        served.connect(autocommit=True) as runs,
        served.events("/subscribe?view=t") as events,
        served.events("/api/live?session=x") as tab,
    ):
        assert events.next("snapshot").data["complete"] and tab.next("snapshot")
        failures = []

        def run() -> None:
            try:
                runs.execute(SLOW)
            except psycopg.Error as err:
                failures.append(err.sqlstate)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: "active" in {a.state for a in served.server._server.host.activity()})
        served.python.execute("CREATE USER ann PASSWORD 'x'")
        thread.join(60)
        assert failures == ["57P01"]
        assert is_ended(idle)
        assert not list(tab) and all(e.name == "failed" for e in events)
        assert served.http("/api/run", body={"text": "SELECT 1"}).status == 401


def test_a_role_created_again_under_its_name_gives_nothing_to_those_who_acted_as_it(serving):
    served = serving(SHOP + "REVOKE reader FROM ann")
    with as_user(served, "ann") as client, as_user(served, "adam") as adam:
        client.execute("SET ROLE analysts")
        assert client.execute("SELECT a FROM t").fetchall() == [(1,)]
        adam.execute("DROP ROLE analysts; CREATE ROLE analysts; GRANT SELECT ON t TO analysts")
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("SELECT a FROM t")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("SET ROLE analysts")


def test_a_role_has_an_id_of_its_own_and_keeps_it_under_another_name():
    old = {"ann": Role("ann")}  # of a database from before roles had ids
    renamed = changed(old, [RenameRole("ann", "eve"), PutRole("ann", {"id": "1"}, makes=True)])
    assert renamed["eve"].identity == old["ann"].identity != renamed["ann"].identity
    again = changed(renamed, [RemoveRole("ann"), PutRole("ann", {"id": "2"}, makes=True)])
    assert again["ann"].identity != renamed["ann"].identity


def test_limits_hold_over_both_protocols_together_and_leave_room_for_admins(serving):
    served = serving(SHOP + "ALTER USER ann CONNECTION LIMIT 1", http_port=0, limits=Limits(connections=2))
    run = {"text": "SELECT 1"}
    with as_user(served, "ann"):
        refused = served.http("/api/run", body=run, user="ann:x")
        assert (refused.status, refused.condition) == (503, "TOO_MANY_CONNECTIONS")
        assert served.http("/subscribe?view=t", user="ann:x").status == 503
        assert served.http("/api/live?session=x", user="ann:x").status == 503
    with served.events("/api/live?session=x", {"Authorization": "Basic YWRhbTp4"}) as one:
        assert one.next("snapshot")
        with served.events("/api/live?session=y", {"Authorization": "Basic YWRhbTp4"}) as two:
            assert two.next("snapshot")
            until(lambda: served.http("/api/run", body=run, user="ann:x").status == 503)
            assert served.http("/api/run", body=run, user="adam:x").status == 200, "room for admins"
            with as_user(served, "adam") as adam:
                assert adam.execute("SELECT 1").fetchone() == (1,)


def test_a_user_can_t_end_the_tokens_of_others(serving):
    served = serving(SHOP, http_port=0)

    def token(user: str) -> dict[str, str]:
        return {"Authorization": "Bearer " + served.http("/api/login", method="POST", user=user).json["token"]}

    adam, first = token("adam:x"), token("ann:x")
    others = [token("ann:x") for _ in range(20)]
    assert served.http("/api/topology", headers=adam).status == 200
    assert served.http("/api/topology", headers=first).status == 401, "the oldest of a user who has too many"
    assert served.http("/api/topology", headers=others[-1]).status == 200


def test_sessions_of_http_are_seen_and_ended_like_others(serving):
    served = serving(SHOP, http_port=0)
    seen = "SELECT application_name, state FROM pg_stat_activity WHERE usename = 'ann' ORDER BY 1"
    with (
        as_user(served, "adam") as adam,
        served.events("/api/live?session=x", {"Authorization": "Basic YW5uOng="}) as tab,
    ):
        assert tab.next("snapshot")
        with served.events("/subscribe?view=t", {"Authorization": "Basic YW5uOng="}) as events:
            assert events.next("snapshot")
            assert adam.execute(seen).fetchall() == [("console", "idle"), ("http subscription", "active")]
            own = served.http("/api/run", body={"text": seen}, user="ann:x").json["results"][0]["data"]
            assert ["http request", "active"] in own and len(own) == 3
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'http%'"
            assert adam.execute(ending).fetchall() == [(True,)]
            assert [e.name for e in events] == []
        answers = []
        body = {"text": f"SELECT pg_backend_pid(); {SLOW}"}
        thread = threading.Thread(target=lambda: answers.append(served.http("/api/run", body=body, user="ann:x")))
        thread.start()
        running = "SELECT pid FROM pg_stat_activity WHERE application_name = 'http request' AND state = 'active'"
        until(lambda: adam.execute(running).fetchall())
        pid = adam.execute(running).fetchone()[0]
        assert adam.execute("SELECT pg_cancel_backend(%s)", (pid,)).fetchone() == (True,)
        thread.join(60)
        first, second = answers[0].json["results"]
        assert first["data"] == [[str(pid)]]
        assert second["error"]["condition"] == "QUERY_CANCELED"


def test_a_client_of_http_that_leaves_cancels_its_query(serving):
    served = serving("CREATE TABLE t (a int)", http_port=0)
    activity = served.server._server.host.activity
    with socket.create_connection(("127.0.0.1", served.server.http_port)) as client:
        body = f'{{"text": "{SLOW}"}}'.encode()
        head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: [a.state for a in activity()] == ["active"])
    until(lambda: not activity())


def test_guesses_wait_longer_and_longer_at_their_own_address_alone():
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    waits = []
    for _ in range(12):
        waits.append(guesses.wait_s("10.0.0.1", "ann"))
        now[0] += waits[-1]
        guesses.begin("10.0.0.1", "ann")
    assert waits[:5] == [0.0] * 5
    assert waits[5:] == [0.125, 0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert guesses.wait_s("10.0.0.1", "bob") == guesses.wait_s("10.0.0.2", "ann") == 0
    guesses.succeed("10.0.0.1", "ann")
    assert guesses.wait_s("10.0.0.1", "ann") == 0
    for number in range(60):  # one password under many names
        guesses.begin("2001:db8::1", f"user{number}")
    assert guesses.wait_s("2001:db8::ffff", "ann") > 0, "machines have many addresses of IPv6"
    assert guesses.wait_s("2001:db8:0:1::1", "ann") == 0
    now[0] += 700
    assert guesses.wait_s("2001:db8::1", "ann") == 0


def test_wrong_passwords_wait_in_both_protocols(serving, monkeypatch):
    served = serving(SHOP, http_port=0)
    guesses = served.server._server.users.guesses
    asked = []

    def wait_s(address: str, user: str) -> float:
        """The first time, a short wait."""
        asked.append((address, user))
        return 0.001 if len(asked) % 2 else 0.0

    monkeypatch.setattr(guesses, "wait_s", wait_s)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        as_user(served, "ann", password="wrong")
    assert served.http("/api/topology", user="nobody:wrong").status == 401
    assert asked == [("127.0.0.1", "ann")] * 2 + [("127.0.0.1", "nobody")] * 2


def test_an_unknown_user_costs_what_a_known_one_costs(serving, monkeypatch):
    """The number of rounds of the password's hash, in the answer and in the work, and no read of a file for either."""
    served = serving("CREATE TABLE t (a int)", http_port=0)
    users = served.server._server.users
    verifier = Verifier.of("x", iterations=20_000, salt=b"0123456789")
    served.python.execute(f"CREATE USER ann PASSWORD '{verifier}'")
    users.find("ann")
    reads, rounds = [], []
    monkeypatch.setattr("watersmeet.server.users.revealed", reads.append)
    of = Verifier.of

    def counted(password: str, *, salt: bytes, iterations: int) -> Verifier:
        rounds.append((iterations, len(salt)))
        return of(password, salt=salt, iterations=iterations)

    monkeypatch.setattr(Verifier, "of", staticmethod(counted))
    for user in ("ann", "nobody", "other"):
        assert served.http("/api/topology", user=f"{user}:wrong").status == 401
    assert (reads, rounds) == ([], [(20_000, 10)] * 3)
    found = [users.find(name)[1] for name in ("nobody", "nobody", "other")]
    assert found[0].salt == found[1].salt != found[2].salt
