"""Pictures of the console: `python -m scripts.consolepictures FOLDER [SCENE]`.

Scenes: `shop`, the pictures of the documentation: orders arrive, a file has two broken lines, one view is stopped and
one is late; then a hundred views, a phone, and no server. `five` and `hundred`: as many views, on a screen and a phone,
light and dark, and each after its server was killed. People look at the pictures; tests/unit/server/test_console.py
tests what they show.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from scripts.browser import Browser, chromium
from selenium.webdriver.common.keys import Keys

import watersmeet
from watersmeet.server.service import BackgroundServer, Endpoint

SECONDS = 150

SCRIPT = """
CREATE TABLE customers (id int PRIMARY KEY, name varchar, city varchar);
CREATE TABLE products (id int PRIMARY KEY, title varchar, price double precision);
CREATE TABLE payments (id int PRIMARY KEY, order_id int, paid double precision);
CREATE SOURCE orders (id int, ts timestamp, customer int, product int, amount double precision,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
    WITH (connector = 'file', path = '{folder}/in') FORMAT PLAIN ENCODE JSON;
INSERT INTO customers SELECT i, 'Customer ' || i, 'City ' || i % 4 FROM generate_series(1, 40) AS g(i);
INSERT INTO products SELECT i, 'Product ' || i, i * 2.5 FROM generate_series(1, 20) AS g(i);
CREATE MATERIALIZED VIEW order_lines AS SELECT o.id, o.ts, c.name, c.city, p.title, o.amount
    FROM orders o JOIN customers c ON o.customer = c.id JOIN products p ON o.product = p.id;
CREATE MATERIALIZED VIEW unpaid AS SELECT o.id, o.amount FROM orders o
    LEFT JOIN payments p ON o.id = p.order_id WHERE p.id IS NULL;
CREATE MATERIALIZED VIEW revenue_by_city AS SELECT city, count(*) AS orders, sum(amount) AS revenue
    FROM order_lines GROUP BY city;
CREATE MATERIALIZED VIEW orders_per_minute AS SELECT window_start, count(*) AS orders, sum(amount) AS revenue
    FROM TUMBLE(orders, ts, INTERVAL '1 minute') GROUP BY window_start;
CREATE MATERIALIZED VIEW best_products AS SELECT title, sum(amount) AS revenue FROM order_lines GROUP BY title;
CREATE MATERIALIZED VIEW same_sums WITH (max_join_amplification_rows = 60)
    AS SELECT a.id AS one, b.id AS other FROM payments a JOIN payments b ON a.paid = b.paid;
CREATE SINK city_files FROM revenue_by_city
    WITH (connector = 'file', path = '{folder}/out', type = 'append-only', force_append_only = 'true');
FLUSH;
"""


FIVE = """
CREATE TABLE customers (id int PRIMARY KEY, name varchar);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount double precision);
CREATE VIEW large_orders AS SELECT * FROM orders WHERE amount > 20;
CREATE MATERIALIZED VIEW order_lines AS SELECT o.id, c.name, o.amount
    FROM orders o JOIN customers c ON o.customer = c.id;
CREATE MATERIALIZED VIEW totals AS SELECT name, sum(amount) AS total FROM order_lines GROUP BY name;
CREATE MATERIALIZED VIEW largest AS SELECT o.id, c.name, o.amount
    FROM large_orders o JOIN customers c ON o.customer = c.id;
INSERT INTO customers SELECT i, 'Customer ' || i FROM generate_series(1, 12) AS g(i);
INSERT INTO orders SELECT i, i % 12, i * 7 % 40 FROM generate_series(1, 500) AS g(i);
FLUSH;
"""
DEVICES = "".join(
    f"CREATE MATERIALIZED VIEW device_{i:03} AS SELECT id, value FROM readings WHERE device = {i};\n" for i in range(98)
)
HUNDRED = f"""
CREATE TABLE readings (id int PRIMARY KEY, device int, value double precision);
CREATE TABLE devices (id int PRIMARY KEY, name varchar);
{DEVICES}
CREATE MATERIALIZED VIEW named AS SELECT r.id, d.name, r.value FROM readings r JOIN devices d ON r.device = d.id;
CREATE MATERIALIZED VIEW averages AS SELECT name, avg(value) AS value FROM named GROUP BY name;
INSERT INTO devices SELECT i, 'Device ' || i FROM generate_series(0, 97) AS g(i);
INSERT INTO readings SELECT i, i % 100, i * 0.5 FROM generate_series(1, 1000) AS g(i);
FLUSH;
"""
SCENES = {"five": (FIVE, "order_lines"), "hundred": (HUNDRED, "readings")}
QUERIES = {
    "five": "SELECT name, count(*) AS n FROM order_lines GROUP BY name",
    "hundred": "SELECT name, value FROM averages",
}
SIZES = {"screen": (1440, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")


def feed(connection: watersmeet.Connection, folder: Path, ended: threading.Event) -> None:
    """Orders and payments, until it has ended."""
    rng = random.Random(1)
    number, began = 0, time.time() - 8
    for step in range(10_000):
        if ended.is_set():
            return
        lines = []
        for _ in range(rng.randint(30, 80) if step else 2_000):
            number += 1
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 8 if step else began - 2_000 + number))
            order = f'"id": {number}, "ts": "{at}", "customer": {rng.randint(1, 40)}, "product": {rng.randint(1, 20)}'
            lines.append(f'{{{order}, "amount": {rng.random() * 100:.2f}}}')
        lines += ['{"id": "x"}', "no JSON at all"] if step == 3 else []
        part = folder / "in" / f".{step}"
        part.write_text("\n".join([*lines, ""]))
        part.rename(folder / "in" / f"{step:05}.json")
        connection.execute(f"INSERT INTO payments VALUES ({step}, {number}, {step if step < 100 else 1})")
        connection.execute("FLUSH")
        ended.wait(0.4)


def save(browser: Browser, folder: Path, name: str) -> None:
    """Takes a picture in 192 colors, as soon as all transitions have ended."""
    time.sleep(1)
    picture = Image.open(BytesIO(browser.driver.get_screenshot_as_png()))
    picture.convert("RGB").quantize(192).save(folder / f"{name}.png", optimize=True)


def take_shop(browser: Browser, url: str, folder: Path) -> None:
    """The pictures of the documentation."""
    browser.open(f"{url}/#/topology?relation=order_lines", height=820)
    browser.until(lambda: len(browser.all(".node[data-health]")) > 10)
    browser.find(".drawer .facts dd")
    save(browser, folder, "console-view")
    browser.click('.drawer [role="tab"]', "Plan")
    save(browser, folder, "console-plan")
    browser.open(f"{url}/#/relations", scheme="dark")
    browser.find("tbody tr")
    save(browser, folder, "console-relations-dark")
    browser.open(f"{url}/#/worksheet", height=760, scheme="dark")
    browser.find("textarea").send_keys(
        "-- revenue of each city\nSELECT city, orders, revenue FROM revenue_by_city ORDER BY city;"
    )
    browser.keys(Keys.CONTROL, Keys.ENTER)
    browser.click('.result [role="tab"]', "Chart")
    save(browser, folder, "console-worksheet-dark")


def take_states(browser: Browser, folder: Path) -> None:
    """The pictures of the documentation with a hundred views, on a phone, and without a server."""
    with served(HUNDRED) as (url, _):
        browser.open(f"{url}/#/topology?unfold=*", height=820)
        browser.until(lambda: browser.all(".node[data-health]"))
        save(browser, folder, "console-hundred")
        browser.open("about:blank")
        browser.open(f"{url}/#/topology?relation=readings", width=390, height=844)
        browser.find(".drawer .facts dd")
        save(browser, folder, "console-phone")
    with served(FIVE) as (url, process):
        browser.open(f"{url}/#/topology", height=640, scheme="dark")
        browser.until(lambda: browser.all('.node[data-health="fresh"]'))
        process.send_signal(signal.SIGKILL)
        browser.until(lambda: browser.find("#notice").is_displayed())
        time.sleep(20)
        save(browser, folder, "console-unreachable-dark")


def shop(browser: Browser, into: Path) -> None:
    """Runs the shop for a while, and takes its pictures."""
    with tempfile.TemporaryDirectory() as name, watersmeet.connect(runtime="inprocess") as connection:
        folder = Path(name)
        (folder / "in").mkdir()
        for _ in connection.execute_script(SCRIPT.format(folder=folder)):
            pass
        ended = threading.Event()
        feeding = threading.Thread(target=feed, args=(connection, folder, ended))
        with BackgroundServer(connection.opened, Endpoint(port=0, http_port=0)) as server:
            feeding.start()
            try:
                time.sleep(SECONDS)
                take_shop(browser, f"http://127.0.0.1:{server.http_port}", into)
            finally:
                ended.set()
                feeding.join()


#: A server that tells its port, and runs until it is killed.
SERVER = """
import sys, time, watersmeet
from watersmeet.server.service import BackgroundServer, Endpoint
with watersmeet.connect(runtime="inprocess") as connection:
    list(connection.execute_script(sys.stdin.read()))
    with BackgroundServer(connection.opened, Endpoint(port=0, http_port=0)) as server:
        print(server.http_port, flush=True)
        time.sleep(86400)
"""


@contextmanager
def served(script: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of a server, which is killed at the end."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(script)
            process.stdin.close()
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


def take_scene(browser: Browser, into: Path, name: str) -> None:
    """A scene on a screen and a phone, light and dark, with a relation opened, and without a server."""
    script, opened = SCENES[name]
    for size, scheme in itertools.product(SIZES, SCHEMES):
        width, height = SIZES[size]

        def show(page: str) -> None:
            browser.open("about:blank", width=width, height=height, scheme=scheme)  # noqa: B023
            browser.open(f"{url}/#/{page}", width=width, height=height, scheme=scheme)  # noqa: B023

        with served(script) as (url, process):
            show("topology")
            browser.until(lambda: browser.all(".node[data-health]"))
            save(browser, into, f"{name}-{size}-{scheme}")
            show("worksheet")
            browser.find("textarea").send_keys(QUERIES[name])
            browser.click(".commands button", "Run")
            browser.find(".result tbody tr")
            browser.find("textarea").send_keys("\nORD")
            save(browser, into, f"{name}-{size}-{scheme}-worksheet")
            show(f"topology?relation={opened}")
            browser.find(".drawer .facts dd")
            save(browser, into, f"{name}-{size}-{scheme}-opened")
            show(f"topology?relation={opened}&unfold=*")
            browser.find(".drawer .facts dd")
            save(browser, into, f"{name}-{size}-{scheme}-unfolded")
            show("topology")
            browser.until(lambda: browser.all('.node[data-health="fresh"]'))
            process.send_signal(signal.SIGKILL)
            browser.until(lambda: browser.find("#notice").is_displayed())
            time.sleep(3)
            save(browser, into, f"{name}-{size}-{scheme}-killed")


def main() -> None:
    """Takes the pictures of all scenes, or of one."""
    into = Path(sys.argv[1])
    into.mkdir(parents=True, exist_ok=True)
    with chromium() as driver:
        browser = Browser(driver)
        for name in sys.argv[2:] or ["shop", *SCENES]:
            if name == "shop":
                shop(browser, into)
                take_states(browser, into)
            else:
                take_scene(browser, into, name)


if __name__ == "__main__":
    main()
