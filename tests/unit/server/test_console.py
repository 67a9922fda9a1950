"""The console in a real browser: what is shown, by mouse and by keys, in light and dark, to everybody; 500 views."""

from __future__ import annotations

import random
import re

import pytest
from scripts.browser import Browser
from selenium.webdriver.common.keys import Keys

import watersmeet
from watersmeet.catalog import Catalog, Table
from watersmeet.drawing import Arrow, Box, Diagram
from watersmeet.server.service import BackgroundServer, Endpoint
from watersmeet.server.web.topologies import Graphs
from watersmeet.server.web.watch import RelationMetrics, Watch

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name varchar);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount double precision);
CREATE MATERIALIZED VIEW joined AS SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.id;
CREATE MATERIALIZED VIEW totals AS SELECT name, sum(amount) AS total FROM joined GROUP BY name;
CREATE MATERIALIZED VIEW limited WITH (max_join_amplification_rows = 3)
    AS SELECT a.id FROM orders a JOIN orders b ON a.amount = b.amount;
INSERT INTO customers VALUES (1, 'Ann'), (2, '<b>Bob</b>');
INSERT INTO orders VALUES (1, 1, 5), (2, 2, 6.5);
FLUSH;
"""


#: Runs axe, with the one rule of WCAG A that it leaves out unless asked.
AXE = """const done = arguments[0];
    axe.run({rules: {"label-content-name-mismatch": {enabled: true}}})
        .then((r) => done(r.violations.map((v) => [v.id, v.nodes[0].html])))"""


@pytest.fixture
def shop(serving):
    return serving(SHOP, http_port=0)


def stop_one(shop):
    """The view `limited` is stopped."""
    shop.python.execute("INSERT INTO orders SELECT i, 3, 2 FROM generate_series(11, 19) AS g(i)")
    shop.python.execute("FLUSH")


def chosen(browser: Browser) -> str:
    return browser.run("return document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")


def node(name: str) -> str:
    return f'.node[aria-label^="{name} "]'


def test_topology_by_mouse_and_by_keys(shop, browser):
    browser.open(shop.url)
    browser.until(lambda: len(browser.all(".node[data-health]")) == 5, "five relations")
    assert {browser.text(t) for t in browser.all(".arrow text")} >= {"inner join on customer", "group by name"}
    browser.until(lambda: "up to date" in browser.text(browser.find(node("totals") + " .metrics")))
    assert browser.find("#pulse").text.startswith("running")
    # What happens is seen without a click.
    stop_one(shop)
    browser.until(lambda: browser.find(node("limited")).get_attribute("data-health") == "stale", "a view is stopped")
    browser.click(".counts .chip.stale")
    assert "limited" in chosen(browser)
    # From box to box by keys; Enter opens, Esc closes and goes back to where one was.
    browser.run("document.querySelector(arguments[0]).focus()", node("orders"))
    browser.keys(Keys.ARROW_RIGHT)
    browser.until(lambda: "orders" not in chosen(browser))
    browser.run("document.querySelector(arguments[0]).focus()", node("joined"))
    browser.keys(Keys.ARROW_RIGHT)
    assert "totals" in chosen(browser)
    browser.keys(Keys.ENTER)
    browser.find(".drawer h2", "totals")
    browser.until(lambda: browser.find(".drawer .facts").text.count("rows/s") >= 2)
    browser.click('.drawer [role="tab"]', "SQL")
    assert "SELECT name, sum(amount) AS total FROM joined GROUP BY name" in browser.find(".drawer .code").text
    browser.keys(Keys.ARROW_RIGHT)
    browser.until(lambda: "hash agg" in browser.find(".drawer .plan").text)
    assert "2 in" in browser.find(".drawer .plan").text
    browser.keys(Keys.ESCAPE)
    browser.until(lambda: not browser.find("#drawer").is_displayed())
    browser.until(lambda: "totals" in chosen(browser))
    # Found by a part of its name; only its lineage.
    browser.keys("/")
    browser.until(lambda: browser.all("dialog.search li .name"))
    browser.keys("limi")
    browser.until(lambda: browser.find('dialog.search li[aria-selected="true"] .name').text == "limited")
    browser.keys(Keys.ENTER)
    assert "AMPLIFICATION_LIMIT" in browser.until(lambda: browser.find(".drawer .state.stale")).text
    browser.click(".drawer .actions button", "Lineage")
    browser.until(lambda: len(browser.all(".node")) == 2, "the lineage of one view")
    browser.click(".scope button", "Show all")
    browser.until(lambda: len(browser.all(".node")) == 5)
    # What is dropped is gone.
    shop.python.execute("DROP MATERIALIZED VIEW limited")
    browser.until(lambda: len(browser.all(".node")) == 4)
    assert browser.complaints() == []


def test_without_a_server_all_is_grey(browser, axe):
    with watersmeet.connect(runtime="inprocess") as connection:
        for _ in connection.execute_script(SHOP):
            pass

        def serve(port):
            return BackgroundServer(connection.opened, Endpoint(port=0, http_port=port))

        with serve(0) as server:
            port = server.http_port
            browser.open(f"http://127.0.0.1:{port}")
            browser.until(lambda: len(browser.all('.node[data-health="fresh"]')) == 5)
            assert not browser.find("#notice").is_displayed()
        browser.until(lambda: browser.find("#notice").is_displayed(), "a banner")
        assert re.fullmatch(
            r"The server does not answer. These are the values of [\d:]{8} UTC, they are \d+ s old.\nTry again",
            browser.find("#notice").text,
        )
        assert [n.get_attribute("data-health") for n in browser.all(".node")] == ["unknown"] * 5
        assert all(browser.text(m).startswith("unknown since ") for m in browser.all(".node .metrics"))
        assert browser.find("#pulse").text == "no connection"
        browser.run(axe)
        assert browser.driver.execute_async_script(AXE) == []
        browser.click("#pages a", "Relations")
        assert all("unknown since" in row.text for row in browser.all("tbody tr"))
        with serve(port):
            browser.run("document.querySelector('#again').click()")  # it may be hidden: the page tries by itself, too
            browser.until(lambda: not browser.find("#notice").is_displayed())
            browser.click("#pages a", "Topology")
            browser.until(lambda: len(browser.all('.node[data-health="fresh"]')) == 5)
            # A server that is cut off closes no connection: the page notices that it hears nothing.
            listen = "m.on('connected', (there) => { window.seen = [...(window.seen ?? []), there]; })"
            silence = "m.known.heard -= 60000; done(window.seen?.includes(false))"
            script = "const done = arguments[0]; import('/live.js').then((m) => { %s; })"
            browser.driver.execute_async_script(script % f"{listen}; done()")
            browser.until(lambda: browser.driver.execute_async_script(script % silence), "silence is noticed")
            browser.until(lambda: browser.run("return window.seen.at(-1)"), "it connects again")


def test_a_database_without_a_writer_is_grey(tmp_path, browser):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        for _ in connection.execute_script(SHOP):
            pass
    with (
        watersmeet.connect(tmp_path / "db", read_only=True) as connection,
        BackgroundServer(connection.opened, Endpoint(port=0, http_port=0)) as server,
    ):
        browser.open(f"http://127.0.0.1:{server.http_port}")
        said = r"No process writes this database. Its newest commit is \d+ s old."
        browser.until(lambda: re.fullmatch(said, browser.find("#notice").text))
        assert browser.find(node("totals")).get_attribute("data-health") == "unknown"


def test_groups_neighbors_and_addresses(serving, browser):
    views = "".join(f"CREATE MATERIALIZED VIEW v{i:03} AS SELECT id FROM customers WHERE id = {i};" for i in range(100))
    plain = "CREATE VIEW large AS SELECT * FROM orders WHERE amount > 5; CREATE MATERIALIZED VIEW big AS SELECT o.id,"
    shop = serving(f"{SHOP} {plain} c.name FROM large o JOIN customers c ON o.customer = c.id; {views}", http_port=0)
    browser.open(shop.url + "/#/topology?relation=joined", width=1100)
    seen = """const room = document.querySelector('.topology').getBoundingClientRect();
        return [...document.querySelectorAll('.node.near')].filter((n) => { const b = n.getBoundingClientRect();
            return b.left >= room.left && b.right <= room.right && b.top >= room.top && b.bottom <= room.bottom;
        }).length"""
    browser.find(".drawer h2", "joined")
    browser.until(lambda: browser.run(seen) == 4, "a view, the tables that it reads and the view that reads it")
    assert browser.run("return location.hash") == "#/topology?relation=joined"
    assert len(browser.all(".node")) == 8, "100 views are one box"
    assert "computed by its readers" in browser.text(browser.find(".node.virtual .metrics"))
    group = browser.find(".node.group")
    assert group.get_attribute("aria-label").startswith("100 views v000 … v099")
    # A view in a group is found, and marks the group; opening the group shows all of them.
    browser.open(shop.url + "/#/topology?relation=v042")
    browser.find(".drawer h2", "v042")
    browser.until(lambda: browser.all(".node.group.here"))
    browser.click(".node.group")
    browser.until(lambda: len(browser.all(".node")) == 107)
    assert "v042" in browser.find(".node.here").get_attribute("aria-label")
    assert browser.run("return location.hash") == "#/topology?relation=v042&unfold=v000"
    browser.driver.back()
    browser.until(lambda: len(browser.all(".node")) == 8)
    browser.driver.forward()
    browser.until(lambda: len(browser.all(".node")) == 107)
    browser.driver.refresh()
    browser.find(".drawer h2", "v042")
    browser.until(lambda: len(browser.all(".node")) == 107)
    browser.click(".scope button", "Fold groups")
    browser.until(lambda: len(browser.all(".node")) == 8)
    assert browser.complaints() == []


def test_worksheet_helps(shop, browser):
    browser.open(shop.url + "/#/worksheet")
    field = browser.find("textarea")

    def suggested():
        return [browser.text(n) for n in browser.all(".suggestions:not([hidden]) .name")]

    browser.until(lambda: len(browser.all(".schema .relations > li")) == 5)
    field.send_keys("SELECT j.na")
    assert suggested() == [], "j is no name yet"
    field.clear()
    field.send_keys("SELECT  FROM joined j", *[Keys.ARROW_LEFT] * len(" FROM joined j"), "j.")
    assert suggested() == ["id", "name", "amount"]
    field.send_keys("n", Keys.TAB)
    assert field.get_attribute("value") == "SELECT j.name FROM joined j"
    field.send_keys(Keys.CONTROL + Keys.END)
    field.send_keys("\nORD")
    assert suggested() == ["orders", "ORDER"]
    field.send_keys(Keys.ARROW_DOWN, Keys.ENTER, " BY 'na")
    assert field.get_attribute("value").endswith("ORDER BY 'na")
    assert suggested() == [], "not within texts"
    field.clear()
    field.send_keys("SELECT id FROM ")
    browser.click(".schema .insert", "orders")
    assert field.get_attribute("value") == "SELECT id FROM orders"
    browser.click(".schema li:last-child .toggle")
    columns = browser.find(".schema li:last-child .columns").text
    assert columns.split() == ["name", "character", "varying", "total", "double", "precision"]
    browser.click(".commands button", "Run")
    browser.find(".result tbody tr")
    assert not browser.all(".results.old")
    field.send_keys(" WHERE id = 1")
    assert browser.find(".results.old .result").is_displayed()
    assert browser.find(".age").text.endswith("UTC, of an earlier text")
    # A plan is a tree; only the statement at the caret is explained.
    field.clear()
    field.send_keys("SELECT name, count(*) FROM joined GROUP BY name ORDER BY 2; DROP TABLE orders")
    field.send_keys(Keys.CONTROL + Keys.HOME)
    browser.click(".commands button", "Explain")
    names = browser.until(lambda: [n.text for n in browser.all(".result .operator b")])
    assert "hash group by" in names
    plan = browser.find(".result .plan").text
    assert "joined" in plan
    assert "__internal" not in plan
    browser.click('.result [role="tab"]', "Text")
    assert "BatchQuery" in browser.find(".result .code").text
    assert len(browser.all(".schema .relations > li")) == 5
    assert browser.complaints() == []


def test_a_phone_shows_all_pages(shop, browser):
    stop_one(shop)
    wide = "return document.documentElement.scrollWidth - window.innerWidth"
    browser.open(shop.url, width=390, height=844)
    browser.until(lambda: len(browser.all(".node[data-health]")) == 5)
    inside = """return [...document.querySelectorAll('.node, #pages a, .tools button')].filter((n) => {
        const b = n.getBoundingClientRect(); return b.left < 0 || b.right > window.innerWidth; }).length"""
    assert browser.run(inside) == 0, "all boxes and all pages are in sight"
    browser.click(node("joined"))
    browser.find(".drawer h2", "joined")
    assert browser.run(wide) == 0
    chosen_box = browser.find(".node.here")
    assert chosen_box.rect["y"] + chosen_box.rect["height"] < browser.find(".drawer").rect["y"], "not covered"
    for page, there in (("Relations", "tbody tr"), ("Sources and sinks", ".sheet h1"), ("Worksheet", "textarea")):
        browser.click("#pages a", page)
        browser.find(there)
        assert browser.run(wide) == 0, page
    browser.find("textarea").send_keys("SELECT * FROM limited, joined, totals; EXPLAIN SELECT 1")
    browser.keys(Keys.CONTROL, Keys.ENTER)
    browser.find(".failed, .result")
    assert browser.run(wide) == 0
    browser.click(".names")
    assert browser.find(".schema").is_displayed()


def test_worksheet(shop, browser):
    browser.open(shop.url + "/#/worksheet")

    def write(text):
        browser.find("textarea").clear()
        browser.find("textarea").send_keys(text)

    write("SELECT name, total FROM totals ORDER BY 1; SELECT NULL AS x")
    browser.keys(Keys.CONTROL, Keys.ENTER)
    browser.until(lambda: len(browser.all(".result")) == 2)
    rows = [
        [c.text for c in r.find_elements("css selector", "td")] for r in browser.all(".result:first-child tbody tr")
    ]
    assert rows == [["<b>Bob</b>", "6.5"], ["Ann", "5"]], "texts are texts"
    assert browser.find(".result:nth-child(2) td.null").text == "NULL"
    browser.click('.result [role="tab"]', "Chart")
    browser.until(lambda: len(browser.all(".drawn .column")) == 2)
    write("SELECT nme FROM totals")
    browser.click(".commands button", "Run")
    browser.until(lambda: "UNDEFINED_COLUMN" in browser.find(".failed").text)
    assert (
        browser.run(
            "const t = document.querySelector('textarea'); return t.value.slice(t.selectionStart, t.selectionEnd)"
        )
        == "nme"
    )
    # The changes of a view, as they come.
    write("totals")
    browser.click(".commands button", "Subscribe")
    browser.until(lambda: len(browser.all(".result tr.came")) == 2)
    shop.python.execute("INSERT INTO orders VALUES (9, 1, 10)")
    shop.python.execute("FLUSH")
    went = browser.until(lambda: browser.all(".result tr.went"))[0]
    assert went.text.split()[1:] == ["-1", "Ann", "5"]
    browser.click(".result button", "Stop this query")
    browser.until(lambda: browser.find(".result .tag").text.startswith("ended"))
    # A query that runs on, in another dialect; the page is left and comes back.
    browser.click(".commands label", "timeplus")
    write("SELECT id, amount FROM orders WHERE amount > 50")
    browser.click(".commands button", "Run")
    browser.until(lambda: browser.find(".result .tag").text.startswith("running"))
    browser.click("#pages a", "Relations")
    browser.find("table.list tr[data-id]")
    shop.python.execute("INSERT INTO orders VALUES (10, 1, 77)")
    browser.click("#pages a", "Worksheet")
    browser.until(lambda: [c.text for c in browser.all(".result td")][:2] == ["10", "77"])
    browser.click(".commands button", "Stop")
    browser.until(lambda: browser.find(".result .tag").text.startswith("ended"))
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
def test_worksheet_lists_all_refused_statements(shop, browser, width):
    browser.open(shop.url + "/#/worksheet", width=width)
    text = browser.find("textarea")
    text.send_keys(
        "CREATE TABLE t (a int);\nCREATE VIEW v AS SELECT nme FROM totals;\nSELECT * FROM v;\n"
        "CREATE SINK s FROM totals WITH (connector = 'kafak');\nSELECT name FROM totals, t"
    )
    browser.click(".commands button", "Check")
    browser.until(lambda: len(browser.all(".check li")) == 3)
    assert "5 statements: 3 would be refused, 1 of them because of another one" in browser.find(".check .tag").text
    lines = [item.text.split("\n") for item in browser.all(".check li")]
    assert [line[0] for line in lines] == ["Line 2", "Line 3", "Line 4"]
    assert "UNDEFINED_COLUMN" in lines[0][1] and lines[0][2] == 'Did you mean "name"?'
    assert lines[1][2] == "It follows from line 2."
    browser.click(".check .place", "Line 4")
    selected = "const t = document.querySelector('textarea'); return t.value.slice(t.selectionStart, t.selectionEnd)"
    assert "kafak" in browser.run(selected)
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert [r[0] for r in shop.python.execute("SHOW TABLES").fetchall()] == ["customers", "orders"], "nothing was run"
    # The first refused statement ends a run; the others follow it.
    text.send_keys(Keys.CONTROL, Keys.END)
    browser.click(".commands button", "Run")
    browser.until(lambda: len(browser.all(".failed ~ .check li")) == 3)
    assert "UNDEFINED_COLUMN" in browser.find(".failed").text
    assert [item.text.split("\n")[0] for item in browser.all(".check li")] == ["Line 2", "Line 3", "Line 4"]
    assert browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_nothing_keeps_people_out(shop, browser, axe, scheme):
    """axe-core finds nothing on any page: names, roles, contrasts, the order of headings."""
    stop_one(shop)
    found = {}

    def check(page):
        browser.run(axe)
        found[page] = browser.driver.execute_async_script(AXE)

    browser.open(shop.url, scheme=scheme)
    browser.until(lambda: len(browser.all(".node[data-health]")) == 5)
    check("topology")
    browser.click(node("limited"))
    browser.find(".drawer h2", "limited")
    for tab in ("SQL", "Plan", "Overview"):
        browser.click('.drawer [role="tab"]', tab)
        check(tab)
    for page, there in (
        ("Relations", "table.list tr[data-id]"),
        ("Sources and sinks", ".sheet h1"),
        ("Worksheet", "textarea"),
    ):
        browser.click("#pages a", page)
        browser.find(there)
        check(page)
    browser.find("textarea").send_keys("SELECT name, total FROM totals; SELECT nothing")
    browser.keys(Keys.CONTROL, Keys.ENTER)
    browser.find(".failed")
    check("results")
    assert {page: said for page, said in found.items() if said} == {}


def test_themes_small_windows_and_logging_in(serving, browser):
    served = serving(SHOP + "CREATE USER ann PASSWORD 'sécret' SUPERUSER", http_port=0)
    browser.open(served.url, width=420, height=800)
    browser.find("#user").send_keys("ann")
    browser.find("#password").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: browser.find(".login .problem").text == "User or password is wrong.")
    browser.find("#password").send_keys("sécret", Keys.ENTER)
    browser.until(lambda: len(browser.all(".node[data-health]")) == 5)
    assert [c for c in browser.complaints() if "401" not in c] == []

    def paper():
        return browser.run("return getComputedStyle(document.body).backgroundColor")

    light = paper()
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth"), (
        "nothing is wider than the window"
    )
    browser.click("#theme")
    assert paper() == light
    browser.click("#theme")
    dark = paper()
    assert dark != light
    browser.open(served.url, scheme="light")
    browser.until(lambda: browser.all(".node"))
    assert paper() == dark, "what was chosen stays"
    browser.click("#theme")
    assert paper() == light
    browser.open(served.url, scheme="dark")
    browser.until(lambda: browser.all(".node"))
    assert paper() == dark, "as the system"
    browser.click(".who")
    browser.find("#user")
    assert browser.complaints() == []


class Many:
    """Ten tables and five hundred views on them, without the database that would have them."""

    def __init__(self) -> None:
        rng = random.Random(5)
        self.ids = [f"t{i}" for i in range(10)] + [f"m{i}" for i in range(500)]
        relations = {i: Table(i, f"relation_{i}", ()) for i in self.ids}
        self.catalog = Catalog(version=7, relations=relations)
        boxes = tuple(
            Box(i, f"relation_{i}", ("table",) if i[0] == "t" else ("materialized view", "x" * 30), "view")
            for i in self.ids
        )
        arrows = [Arrow(f"t{n}", f"m{i}", "inner join on k") for i in range(350) for n in rng.sample(range(10), 2)]
        arrows += [Arrow(f"m{rng.randrange(350)}", f"m{i}", "group by k") for i in range(350, 500)]
        self.diagram = Diagram("many", boxes, tuple(arrows))
        self.metrics = {i: RelationMetrics("running", 0, 0.0, 12.0, 3.0, 1000, 2000) for i in self.ids}
        self.metrics["m77"] = RelationMetrics("running", 2, 75.0, note="late")


def test_500_views_stay_usable(serving, browser, monkeypatch):
    many = Many()
    take = Watch._take

    def taken(self):
        found = take(self)
        object.__setattr__(found, "metrics", dict(many.metrics))
        object.__setattr__(found, "catalog", many.catalog)
        return found

    monkeypatch.setattr(Watch, "_take", taken)
    monkeypatch.setattr(Graphs, "diagram", lambda _: (many.catalog, many.diagram))
    served = serving("CREATE TABLE t (a int)", http_port=0)
    browser.open(served.url + "/#/topology?unfold=*")
    browser.until(lambda: len(browser.all(".node[data-health]")) == 510, "510 boxes")
    width, height = browser.run(
        "const b = document.querySelector('.topology > g').getBBox(); return [b.width, b.height]"
    )
    assert 1 < width / height < 3, "the picture fits a screen"
    inside = """const s = document.querySelector('.topology').getBoundingClientRect();
        return [...document.querySelectorAll('.node')].every((n) => { const b = n.getBoundingClientRect();
            return b.left >= s.left && b.right <= s.right && b.top >= s.top && b.bottom <= s.bottom; })"""
    assert browser.run(inside), "all of it is seen"
    assert browser.find("canvas.overview").is_displayed()
    drawn = "return [...document.querySelectorAll('.arrow')].filter((a) => a.getClientRects().length).length"
    assert browser.run(drawn) == 0, "arrows are shown of what is chosen"
    browser.click(".counts .chip.stale", "1 stopped or stale")
    assert "relation_m77" in chosen(browser)
    assert not browser.run("return document.querySelector('.topology').classList.contains('far')"), "it can be read now"
    browser.click('.node[data-id="m400"]')
    assert browser.run(drawn) == 1
    browser.keys(Keys.ESCAPE)
    # What changes is written, and nothing else.
    watched = "document.querySelector('.topology > g'), {subtree: true, childList: true, characterData: true}"
    observer = f"new MutationObserver((m) => {{ window.changes += m.length; }}).observe({watched})"
    browser.run(f"window.changes = 0; {observer}")
    many.metrics = {**many.metrics, "m9": many.metrics["m9"]._replace(rows_in=99.0)}
    browser.until(lambda: "99 rows/s" in browser.text(browser.find('.node[data-id="m9"] .metrics')))
    assert browser.run("return window.changes") <= 2
    browser.click("#pages a", "Relations")
    browser.until(lambda: len(browser.all("table.list tbody tr")) == 510)
    browser.find('input[type="search"]').send_keys("m12")
    browser.until(lambda: len(browser.all("table.list tbody tr")) == 11)
    browser.keys(Keys.CONTROL + "a", Keys.BACKSPACE)
    browser.click(".chip", "Problems")
    browser.until(lambda: [r.get_attribute("data-id") for r in browser.all("tbody tr")] == ["m77"])
    assert [c for c in browser.complaints() if "404" not in c] == [], "of m400 the database knows nothing"
