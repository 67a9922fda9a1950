"""Pictures of the console for the documentation: `python -m scripts.consolepictures FOLDER`.

A shop with orders that come in, a file with two broken lines, a view that is stopped and one that is late. The pictures
are looked at by people; tests/unit/server/test_console.py tests what they show.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from pathlib import Path

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


def take(browser: Browser, url: str, folder: Path) -> None:
    """All pictures."""

    def save(name: str) -> None:
        time.sleep(1)
        browser.driver.save_screenshot(str(folder / f"{name}.png"))

    browser.open(f"{url}/#/topology", height=860)
    browser.until(lambda: len(browser.all(".node[data-health]")) > 10)
    save("console-topology")
    browser.click('.node[aria-label*=" order_lines:"]')
    browser.find(".drawer .facts dd")
    save("console-view")
    browser.click('.drawer [role="tab"]', "Plan")
    save("console-plan")
    browser.open(f"{url}/#/relations", scheme="dark")
    browser.find("tbody tr")
    save("console-relations-dark")
    browser.click("#pages a", "Worksheet")
    browser.find("textarea").send_keys(
        "-- what each city brings in\nSELECT city, orders, revenue FROM revenue_by_city ORDER BY city;"
    )
    browser.keys(Keys.CONTROL, Keys.ENTER)
    browser.click('.result [role="tab"]', "Chart")
    save("console-worksheet-dark")
    browser.open(f"{url}/#/topology", width=420, height=800)
    browser.until(lambda: browser.all(".node[data-health]"))
    save("console-small")


def main() -> None:
    """Runs the shop for a while, and looks at it."""
    into = Path(sys.argv[1])
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, watersmeet.connect(runtime="inprocess") as connection:
        folder = Path(name)
        (folder / "in").mkdir()
        for _ in connection.execute_script(SCRIPT.format(folder=folder)):
            pass
        ended = threading.Event()
        feeding = threading.Thread(target=feed, args=(connection, folder, ended))
        with BackgroundServer(connection.opened, Endpoint(port=0, http_port=0)) as server, chromium() as driver:
            feeding.start()
            try:
                time.sleep(SECONDS)
                take(Browser(driver), f"http://127.0.0.1:{server.http_port}", into)
            finally:
                ended.set()
                feeding.join()


if __name__ == "__main__":
    main()
