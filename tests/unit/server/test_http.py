"""HTTP: who is let in, health, metrics, and what the console asks for."""

from __future__ import annotations

import json
import re
import ssl
import threading
import urllib.error
import urllib.request

import pytest
from tests.harness import connect_without_connectors
from tests.unit.server.test_access import USERS, self_signed
from tests.waiting import until

import watersmeet
from watersmeet.server.clients import Limits
from watersmeet.server.service import BackgroundServer, Endpoint
from watersmeet.server.web.access import COOKIE

SHOP = """
CREATE TABLE o (id int PRIMARY KEY, c int, amount double precision);
CREATE TABLE c (id int PRIMARY KEY, name varchar);
CREATE MATERIALIZED VIEW joined AS SELECT o.id, c.name, o.amount FROM o JOIN c ON o.c = c.id;
CREATE MATERIALIZED VIEW totals AS SELECT name, sum(amount) AS total FROM joined GROUP BY name;
INSERT INTO c VALUES (1, 'Ann'), (2, NULL); INSERT INTO o VALUES (1, 1, 5), (2, 1, 6.5), (3, 2, 1);
FLUSH;
"""
#: It takes minutes.
SLOW = "SELECT count(*) FROM generate_series(1, 100000) AS a(x), generate_series(1, 100000) AS b(y) WHERE x + y < 0"


@pytest.fixture
def shop(serving):
    return serving(SHOP, http_port=0)


def test_without_users_this_machine_is_let_in_under_its_own_names_only(shop):
    assert shop.http("/api/session").json["lets_in"] is True
    assert shop.http("/metrics").status == 200
    for host, status in (
        ("localhost:1", 200),
        ("[::1]:1", 200),
        ("evil.example:80", 403),
        ("127.0.0.1.evil.example", 403),
    ):
        assert shop.http("/api/topology", headers={"Host": host}).status == status
    assert shop.http("/api/topology", headers={"Host": "evil.example"}).condition == "INVALID_AUTHORIZATION"


def test_pages_of_others_are_refused(shop):
    run = {"text": "SELECT 1"}
    assert shop.http("/api/run", body=run, headers={"Origin": shop.url}).status == 200
    for origin in ("http://evil.example", "null", shop.url.replace("127.0.0.1", "localhost")):
        assert shop.http("/api/run", body=run, headers={"Origin": origin}).status == 403
        assert shop.http("/api/topology", headers={"Origin": origin}).status == 403
    assert shop.http("/api/topology", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    # Forms and scripts of others can send this without asking first.
    assert shop.http("/api/run", body=run, headers={"Content-Type": "text/plain"}).condition == "INVALID_PARAMETER"
    assert shop.http("/api/run").status == 405
    assert shop.http("/api/session").headers["Access-Control-Allow-Origin"] is None


def test_users_log_in_once_and_have_a_token(serving):
    served = serving(USERS + SHOP, http_port=0)
    assert served.http("/api/session").json | {"lets_in": False, "user": None} == served.http("/api/session").json
    assert served.http("/").status == served.http("/livez").status == served.http("/readyz").status == 200
    for path in ("/api/topology", "/api/live?session=x", "/metrics", "/subscribe?view=totals"):
        refused = served.http(path)
        assert (refused.status, refused.condition) == (401, "AUTHENTICATION_FAILED")
        assert (refused.headers["WWW-Authenticate"] is None) == path.startswith("/api/")
    wrong = [served.http("/api/login", method="POST", user=u).json for u in ("ann:other", "nobody:sécret", "ann:")]
    assert [w["error"]["message"].replace("nobody", "ann") for w in wrong] == [wrong[0]["error"]["message"]] * 3
    assert served.http("/api/login", method="POST", headers={"Authorization": "Basic ?"}).status == 401
    login = served.http("/api/login", method="POST", user="ann:sécret")
    cookie = login.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "sécret" not in cookie
    token = login.json["token"]
    for headers in ({"Cookie": f"{COOKIE}={token}"}, {"Authorization": f"Bearer {token}"}):
        assert served.http("/api/session", headers=headers).json["user"] == "ann"
    assert served.http("/metrics", user="ann:sécret").status == 200
    assert served.http("/api/topology", user="ann:sécret").status == 200, "it is checked once and remembered"
    served.http("/api/logout", body={}, headers={"Cookie": f"{COOKIE}={token}"})
    assert served.http("/api/topology", headers={"Cookie": f"{COOKIE}={token}"}).status == 401
    again = served.http("/api/login", method="POST", user="bob:other").json["token"]
    served.python.execute("DROP USER bob")
    assert served.http("/api/topology", headers={"Authorization": f"Bearer {again}"}).status == 401
    assert served.http("/api/topology", user="bob:other").status == 401


def test_what_is_not_granted_is_not_there(serving):
    served = serving(USERS + SHOP + "GRANT SELECT ON totals TO bob", http_port=0)

    def bob(path, **more):
        return served.http(path, user="bob:other", **more)

    assert [b["name"] for b in bob("/api/topology").json["boxes"]] == ["totals"]
    ids = {b["name"]: b["id"] for b in served.http("/api/topology", user="ann:sécret").json["boxes"]}
    assert bob("/api/relations/joined").condition == "UNDEFINED_RELATION"
    totals = bob("/api/relations/totals").json
    assert (totals["sql"], totals["plan"], totals["reads"]) == ("", None, [])
    assert bob("/api/relations/totals/history").status == 200
    assert bob("/metrics").condition == bob("/api/history").condition == "PERMISSION_DENIED"
    results = bob("/api/run", body={"text": "SELECT * FROM totals ORDER BY 1; SELECT * FROM joined"}).json["results"]
    assert results[0]["data"][0] == ["Ann", "11.5"]
    assert results[1]["error"]["condition"] == "UNDEFINED_RELATION"
    with served.events("/api/live?session=b", {"Authorization": "Basic Ym9iOm90aGVy"}) as events:
        assert events.next("snapshot").data["metrics"].keys() == {ids["totals"]}
        served.python.execute("GRANT SELECT ON joined TO bob")
        assert next(e for e in events if ids["joined"] in e.data.get("metrics", {}))
    assert bob("/subscribe?view=c").status == 404


def test_the_topology_tells_nothing_of_what_is_hidden(serving):
    """Neither around a hidden relation, nor by ways through one."""
    hidden = """
        CREATE MATERIALIZED VIEW secret AS SELECT a.id FROM o a JOIN c ON a.c = c.id;
        CREATE MATERIALIZED VIEW shown AS SELECT count(*) AS n FROM secret;
        GRANT SELECT ON o, c, shown TO bob"""
    served = serving(USERS + SHOP + hidden, http_port=0)

    def seen(around: str) -> list[str]:
        graph = served.http(f"/api/topology?around={around}", user="bob:other").json
        assert not graph["arrows"]
        return sorted(b["name"] for b in graph["boxes"])

    assert seen("secret") == seen("nothing") == []
    assert seen("o") == ["o"]
    assert seen("shown") == ["shown"]


def test_arrows_say_how_a_view_is_made_to_those_alone_who_may_know(serving):
    served = serving(USERS + SHOP + "GRANT SELECT ON o, joined TO bob", http_port=0)
    for user, labels in (("ann:sécret", {"inner join on c"}), ("bob:other", {""})):
        graph = served.http("/api/topology", user=user).json
        names = {b["id"]: b["name"] for b in graph["boxes"]}
        assert {a["label"] for a in graph["arrows"] if names[a["from"]] == "o"} == labels


#: Bodies of requests, and the condition that they get.
BODIES = {
    b"[": "INVALID_PARAMETER",
    b"[]": "INVALID_PARAMETER",
    b"null": "INVALID_PARAMETER",
    b"\xff\xfe": "INVALID_PARAMETER",
    b"[" * 100_000: "INVALID_PARAMETER",
    b'{"text": 1}': "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "rows": true}': "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "rows": NaN}': "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "rows": ' + b"9" * 6000 + b"}": "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "dialect": 5}': "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "dialect": ["a"]}': "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "session": {}}': "INVALID_PARAMETER",
    b'{"text": "SELECT 1", "session": "\\ud800"}': "UNDEFINED_OBJECT",
}


def test_odd_json_is_a_bad_request(shop):
    def post(body: bytes, kind: str = "application/json"):
        request = urllib.request.Request(shop.url + "/api/run", body, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=30) as found:
                return found.status, json.loads(found.read())
        except urllib.error.HTTPError as found:
            return found.code, json.loads(found.read())

    for body, condition in BODIES.items():
        status, told = post(body)
        assert (status in (400, 404), told["error"]["condition"]) == (True, condition), body[:50]
    assert post(b'{"text": "SELECT 1"}', "application/json; charset=bogus")[0] == 200
    for number in ("9" * 5000, "9" * 30, "-1", "x"):
        assert shop.http(f"/subscribe?view=totals&after={number}").condition == "INVALID_PARAMETER"
    for body in (b'{"text": "SELECT 1", "dialect": "\\ud800"}', b'{"text": "SELECT \'\\ud800\'"}'):
        status, told = post(body)  # what is told may have what UTF-8 does not have
        assert status == 200 and "error" in told["results"][0]


def test_encryption(serving, tmp_path):
    certificate, key = self_signed(tmp_path)
    served = serving(USERS, certificate=certificate, key=key, http_port=0)
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(f"https://127.0.0.1:{served.server.http_port}/livez", context=context) as found:
        assert found.status == 200
    with pytest.raises(ConnectionError):
        served.http("/livez")


def test_health_and_readiness(shop):
    assert shop.http("/livez").json == {"alive": True}
    assert shop.http("/readyz").json == {"ready": True}
    engine = shop.python.opened.engine
    engine._failure = watersmeet.errors.error("VIEW_FAILED", "the views can't continue")
    try:
        refused = shop.http("/readyz")
        assert (refused.status, refused.json["condition"]) == (503, "VIEW_FAILED")
        assert shop.http("/livez").status == 200
    finally:
        engine._failure = None


def test_pages_may_load_nothing_from_elsewhere(shop):
    page = shop.http("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    names = re.findall(r'(?:src|href)="([\w.]+)"', page.body.decode())
    assert set(names) >= {"main.js", "console.css", "mark.svg"}
    seen, pending = set(), [*names]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            file = shop.http(f"/{name}")
            assert file.status == 200, name
            assert not re.search(r"https?://(?!www\.w3\.org/)", file.body.decode()), name
            pending += re.findall(r'from "\./([\w.]+)"', file.body.decode())
    assert len(seen) > 10
    for name in ("nothing.js", "../service.py", "%2e%2e/service.py", "static"):
        assert shop.http(f"/{name}").status == 404


def test_the_topology_and_one_relation(shop):
    graph = shop.http("/api/topology").json
    ids = {b["name"]: b["id"] for b in graph["boxes"]}
    assert {(a["from"], a["to"], a["label"]) for a in graph["arrows"]} == {
        (ids["o"], ids["joined"], "inner join on c"),
        (ids["c"], ids["joined"], "inner join on id"),
        (ids["joined"], ids["totals"], "group by name"),
    }
    around = shop.http("/api/topology?around=c").json
    assert [b["name"] for b in around["boxes"]] == ["c", "joined", "totals"]
    joined = shop.http("/api/relations/joined").json
    assert joined["sql"].startswith("CREATE MATERIALIZED VIEW joined AS")
    assert [r["name"] for r in joined["reads"]] == ["o", "c"]
    assert [r["name"] for r in joined["read_by"]] == ["totals"]

    def nodes(tree):
        return [tree, *(n for i in tree["inputs"] for n in nodes(i))]

    plan = {n["name"]: n["metrics"] for n in nodes(joined["plan"]["root"])}
    assert plan["StreamHashJoin"] | {"rows_in": 5, "rows_out": 3, "made_rows": 3} == plan["StreamHashJoin"]
    assert plan["StreamHashJoin"]["us_per_epoch"] > 0
    assert 0 < plan["StreamHashJoin"]["share"] < joined["plan"]["share"] < 1
    assert (
        sum(n["metrics"].get("state_rows", 0) for n in nodes(joined["plan"]["root"]) if n["name"] == "StreamArrange")
        == 5
    )
    assert shop.http("/api/relations/nothing").condition == "UNDEFINED_RELATION"


def test_views_with_the_same_neighbors_are_one_box(serving):
    views = "".join(f"CREATE MATERIALIZED VIEW v{i:02} AS SELECT id FROM o WHERE c = {i};" for i in range(12))
    served = serving(SHOP + views, http_port=0)
    graph = served.http("/api/topology").json
    boxes = {b["name"]: b for b in graph["boxes"]}
    assert boxes.keys() == {"c", "o", "joined", "totals", "12 views"}
    group = boxes["12 views"]
    assert [m["name"] for m in group["members"]] == [f"v{i:02}" for i in range(12)]
    (arrow,) = (a for a in graph["arrows"] if a["to"] == group["id"])
    assert arrow["from"] == boxes["o"]["id"]
    for unfold in ("v07", "*"):
        assert len(served.http(f"/api/topology?unfold=nothing&unfold={unfold}").json["boxes"]) == 16
    assert len(served.http("/api/topology?around=v03").json["boxes"]) == 2, "it is not folded into itself"


def test_columns_for_completion(serving):
    served = serving(USERS + SHOP + "CREATE VIEW plain AS SELECT id FROM o; GRANT SELECT ON totals TO bob", http_port=0)
    found = served.http("/api/columns", user="ann:sécret").json
    assert [r["name"] for r in found] == ["c", "joined", "o", "plain", "totals"]
    assert found[3] == {"name": "plain", "what": "view", "columns": [{"name": "id", "type": "integer"}]}
    assert [r["name"] for r in served.http("/api/columns", user="bob:other").json] == ["totals"]


def test_secrets_are_not_shown(serving):
    script = """CREATE SOURCE s (a int) WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = 'h:1',
        properties.sasl.password = 'hush-hush') FORMAT PLAIN ENCODE JSON;"""
    served = serving(script, http_port=0, connect=connect_without_connectors)
    (box,) = served.http("/api/topology").json["boxes"]
    shown = served.http(f"/api/relations/{box['name']}").body.decode()
    assert "bootstrap" in shown
    failed = served.http(
        "/api/run", body={"text": "CREATE SECRET x WITH (backend = 'meta') AS 'hush-hush' oops"}
    ).body.decode()
    with served.events("/api/live?session=1") as events:
        live = json.dumps(events.next().data)
    assert "hush-hush" not in shown + failed + live + served.http("/metrics").body.decode()


def test_statements_run_in_the_session_of_a_tab(shop):
    with shop.events("/api/live?session=one") as events:
        events.next("snapshot")

        def run(text, **more):
            return shop.http("/api/run", body={"text": text, "session": "one", **more}).json

        found = run("SELECT id, name, amount FROM joined ORDER BY id")
        (result,) = found["results"]
        assert [c["name"] for c in result["columns"]] == ["id", "name", "amount"]
        assert result["data"] == [["1", "Ann", "5"], ["2", "Ann", "6.5"], ["3", None, "1"]]
        assert found["dialect"] == "risingwave"
        assert (
            run("SELECT * FROM o", rows=2)["results"][0] | {"rows": 3} == run("SELECT * FROM o", rows=2)["results"][0]
        )
        assert len(run("SELECT * FROM o", rows=2)["results"][0]["data"]) == 2
        assert run("BEGIN")["transaction"] is True
        assert run("INSERT INTO o VALUES (9, 1, 1)")["results"][0]["tag"] == "INSERT 0 1"
        assert run("SELECT count(*) FROM o")["results"][0]["data"] == [["4"]]
        assert run("ROLLBACK")["transaction"] is False
        assert run("SET dialect = 'lenses'")["dialect"] == "lenses"
        two = run("SELECT 1 AS a; SELECT nothing", dialect="risingwave")["results"]
        assert two[0]["data"] == [["1"]]
        assert (two[1]["error"]["condition"], two[1]["error"]["span"]["start"]) == ("UNDEFINED_COLUMN", 22)
        assert "DROP" not in run("EXPLAIN SELECT * FROM o")["results"][0]["data"][0][0]
        assert run("COPY o TO STDOUT")["results"][0]["error"]["condition"] == "FEATURE_NOT_SUPPORTED"
        ended = run(f"SET statement_timeout = '100ms'; {SLOW}")["results"][-1]
        assert ended["error"]["condition"] == "QUERY_CANCELED"
    for wrong in ({"text": 1}, {"text": "x", "rows": 10**9}, {"text": "x", "rows": True, "session": 1}, [1]):
        assert shop.http("/api/run", body=wrong).condition == "INVALID_PARAMETER"
    assert shop.http("/api/run", body={"text": "SELECT 1", "session": "gone"}).condition == "UNDEFINED_OBJECT"


def test_queries_run_on_in_a_tab_until_they_are_stopped(shop):
    with shop.events("/api/live?session=t") as events:
        events.next("snapshot")
        run = {"text": "SELECT id, amount FROM o WHERE amount > 5", "dialect": "timeplus", "session": "t"}
        (result,) = shop.http("/api/run", body=run).json["results"]
        shop.python.execute("INSERT INTO o VALUES (4, 1, 10)")
        rows = []
        while ["4", "10"] not in [r[:2] for r in rows]:
            told = events.next("rows").data
            assert told["query"] == result["query"]
            rows += told["data"]
        assert shop.http("/metrics").body.decode().count("watersmeet_subscriptions 1.0")
        assert shop.http("/api/stop", body={"session": "t", "query": "q0"}).condition == "UNDEFINED_OBJECT"
        shop.http("/api/stop", body={"session": "t", "query": result["query"]})
        assert events.next("ended").data == {"query": result["query"], "error": None}
        for _ in range(8):
            assert shop.http("/api/run", body=run).json["results"][0]["query"]
        assert shop.http("/api/run", body=run).json["results"][0]["error"]["condition"] == "SESSION_BUSY"
    until(
        lambda: not shop.python.execute("SHOW QUERIES").fetchall() and "watersmeet_subscriptions 0.0" in metrics(shop)
    )


def test_views_are_followed_in_a_tab(shop):
    with shop.events("/api/live?session=t") as events:
        events.next("snapshot")
        followed = shop.http("/api/follow", body={"session": "t", "names": ["totals", "joined"]}).json["results"]
        assert [c["name"] for c in followed[0]["columns"]] == ["commit", "diff", "name", "total"]
        first = events.next("rows").data
        assert first["query"] == followed[0]["query"]
        assert {tuple(r[1:]) for r in first["data"]} == {("1", None, "1"), ("1", "Ann", "11.5")}
        shop.python.execute("UPDATE o SET amount = 7 WHERE id = 1")
        shop.python.execute("FLUSH")
        changed = next(
            e.data
            for e in events
            if e.data.get("query") == followed[0]["query"]
            and len(e.data["data"][0]) == 4
            and e.data["data"][0][1] == "-1"
        )
        assert [r[1:] for r in changed["data"]] == [["-1", "Ann", "11.5"], ["1", "Ann", "13.5"]]
        assert len({r[0] for r in changed["data"]}) == 1
        shop.http("/api/stop", body={"session": "t", "query": followed[1]["query"]})
        assert {events.next("ended").data["query"] for _ in range(2)} == {f["query"] for f in followed}
        assert shop.http("/api/follow", body={"session": "t", "names": ["nothing"]}).condition == "UNDEFINED_RELATION"
        assert shop.http("/api/follow", body={"session": "t", "names": "totals"}).condition == "INVALID_PARAMETER"


def test_a_statement_is_stopped_while_it_runs(shop):
    with shop.events("/api/live?session=t") as events:
        events.next("snapshot")
        found = {}

        def run():
            while "results" not in found:  # it may be the one that finds the worksheet busy
                found.update(shop.http("/api/run", body={"text": SLOW, "session": "t"}).json)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            busy = {"text": "SELECT 1", "session": "t"}
            until(lambda: (a := shop.http("/api/run", body=busy)).status == 400 and a.condition == "SESSION_BUSY")
        finally:
            until(
                lambda: (
                    shop.http("/api/stop", body={"session": "t"}).status == 200
                    and not thread.join(0.2)
                    and not thread.is_alive()
                )
            )
        assert found["results"][0]["error"]["condition"] == "QUERY_CANCELED"


def test_a_server_that_ends_waits_for_no_statement(serving):
    served = serving(SHOP)
    with BackgroundServer(served.python.opened, Endpoint(port=0, http_port=0)) as server:
        other = type(served)(served.python, server)
        thread = threading.Thread(target=lambda: other.http("/api/run", body={"text": SLOW}))
        thread.start()
        until(lambda: server._server._web._alone)
    thread.join(30)
    assert not thread.is_alive()


def test_metrics_follow_what_happens(shop):
    with shop.events("/api/live?session=t") as events:
        names = shop.http("/api/session").json["metrics"]
        ids = {b["name"]: b["id"] for b in shop.http("/api/topology").json["boxes"]}

        def metrics(snapshot, name):
            return dict(zip(names, snapshot.data["metrics"][ids[name]], strict=True))

        first = events.next("snapshot")
        assert metrics(first, "totals") | {"state": "running", "health": 0, "rows": 2, "errors": 0} == metrics(
            first, "totals"
        )
        assert first.data["database"]["state"] == "running"
        shop.python.execute("INSERT INTO c VALUES (3, 'Eve'); INSERT INTO o VALUES (7, 3, 1)")
        # A snapshot between the two transactions is one behind.
        assert any(e.data.get("database", {}).get("behind") == 2 for e in events)
        shop.python.execute("FLUSH")
        done = next(
            e for e in events if ids["totals"] in e.data.get("metrics", {}) and metrics(e, "totals")["rows"] == 3
        )
        assert metrics(done, "totals")["rows_in"] > 0
        shop.python.execute("DROP MATERIALIZED VIEW totals")
        assert (
            next(e for e in events if ids["totals"] in e.data.get("gone", ())).data["version"] > first.data["version"]
        )


def metrics(served):
    return served.http("/metrics").body.decode()


def test_streams_end_with_the_server_and_have_a_limit(serving):
    served = serving(SHOP, http_port=0, limits=Limits(connections=1))
    with served.events("/api/live?session=1") as events:
        events.next()
        assert served.http("/subscribe?view=totals").condition == "TOO_MANY_CONNECTIONS"
    until(lambda: served.http("/api/live?session=").condition == "INVALID_PARAMETER")


def test_a_view_that_is_stopped_says_why(serving):
    script = """CREATE TABLE t (k int PRIMARY KEY, g int);
        CREATE MATERIALIZED VIEW v WITH (max_join_amplification_rows = 3)
            AS SELECT a.k FROM t a JOIN t b ON a.g = b.g;"""
    served = serving(script, http_port=0)
    with served.events("/api/live?session=t") as events:
        names = served.http("/api/session").json["metrics"]
        events.next()
        served.python.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 9) g(i)")
        served.python.execute("FLUSH")
        for event in events:
            shown = {i: dict(zip(names, f, strict=True)) for i, f in event.data.get("metrics", {}).items()}
            if stopped := [i for i, f in shown.items() if f["state"] == "stopped"]:
                break
    assert shown[stopped[0]] | {"health": 2, "errors": 1} == shown[stopped[0]]
    assert shown[stopped[0]]["note"].startswith("AMPLIFICATION_LIMIT: ")
    assert served.http("/api/relations/v").json["error"]["condition"] == "AMPLIFICATION_LIMIT"
    assert b'watersmeet_view_failed{view="v"} 1.0' in served.http("/metrics").body
    assert served.http("/readyz").status == 200, "the others go on"


def test_requests_that_nothing_answers_say_what_is_wrong(shop):
    wrong = shop.http("/api/run")
    assert (wrong.status, wrong.condition, wrong.json["error"]["hint"]) == (405, "INVALID_PARAMETER", "Use POST.")
    assert (shop.http("/nothing").status, shop.http("/nothing").condition) == (404, "UNDEFINED_OBJECT")
    large = shop.http("/api/run", body={"text": "x" * (1 << 25)})
    assert (large.status, large.condition) == (413, "INVALID_PARAMETER")
    assert "too large" in large.json["error"]["message"]


def test_a_password_that_has_changed_counts_no_more(serving):
    served = serving("CREATE USER ann PASSWORD 'old' SUPERUSER; CREATE TABLE t (a int)", http_port=0)
    for _ in range(2):
        assert served.http("/metrics", user="ann:old").status == 200
    served.python.execute("ALTER USER ann PASSWORD 'new'")
    assert served.http("/metrics", user="ann:old").status == 401
    assert served.http("/metrics", user="ann:new").status == 200
