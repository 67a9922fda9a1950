"""Nexmark's queries on Apache Flink, the peer of `nexmark --files`.

`PYTHON flink.py NUMBER FOLDER FILES` runs one in a process of its own and prints one JSON line. PYTHON belongs to an
environment with apache-flink, whose lib folder has flink-sql-parquet; HADOOP_CLASSPATH names Hadoop's client jars.

Each is a streaming job over all files, with one slot, state on the heap, and no checkpoints.
The watermark is a day late, so all state stays until the end. The run that is measured discards its results; one before
it, over the first FILES files only, returns their number and sums.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COLUMNS = {
    "person": "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP(6), extra STRING",
    "auction": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP(6), expires TIMESTAMP(6), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP(6), "
    "extra STRING",
}
_ROW = "ROW_NUMBER() OVER (PARTITION BY {} ORDER BY {})"
_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(ms), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ms), INTERVAL '10' SECOND))"
_DISTINCT = ", ".join(
    f"COUNT(DISTINCT {column}) {condition} AS {name}"
    for column, plural in (("bidder", "bidders"), ("auction", "auctions"))
    for condition, name in (
        ("", f"total_{plural}"),
        ("FILTER (WHERE price < 10000)", f"rank1_{plural}"),
        ("FILTER (WHERE price >= 10000 AND price < 1000000)", f"rank2_{plural}"),
        ("FILTER (WHERE price >= 1000000)", f"rank3_{plural}"),
    )
)
#: By number, in Flink's SQL; the same answers as examples/nexmark.
QUERIES = {
    3: """SELECT p.name, p.city, p.state, a.id FROM auction AS a JOIN person AS p ON a.seller = p.id
        WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')""",
    4: """SELECT category, AVG(CAST(final AS DECIMAL(20, 0))) AS `avg` FROM (
        SELECT MAX(b.price) AS final, a.category FROM auction a, bid b
        WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category)
        GROUP BY category""",
    5: f"""SELECT ab.auction, ab.num FROM (
        SELECT auction, COUNT(*) AS num, window_start, window_end FROM {_HOP}
        GROUP BY auction, window_start, window_end) AS ab
        JOIN (SELECT MAX(num) AS maxn, window_start, window_end FROM (
            SELECT COUNT(*) AS num, window_start, window_end FROM {_HOP} GROUP BY auction, window_start, window_end)
            GROUP BY window_start, window_end) AS mb
        ON ab.window_start = mb.window_start AND ab.window_end = mb.window_end AND ab.num >= mb.maxn""",
    7: f"""SELECT b.auction, b.price, b.bidder, b.date_time FROM bid b JOIN (
        SELECT MAX(price) AS maxprice, window_end AS ended FROM {_TUMBLE.format("bid")}
        GROUP BY window_start, window_end) AS b1 ON b.price = b1.maxprice
        WHERE b.date_time BETWEEN b1.ended - INTERVAL '10' SECOND AND b1.ended""",
    8: f"""SELECT p.id, p.name, p.window_start FROM (
        SELECT id, name, window_start, window_end FROM {_TUMBLE.format("person")}
        GROUP BY id, name, window_start, window_end) AS p
        JOIN (SELECT seller, window_start, window_end FROM {_TUMBLE.format("auction")}
        GROUP BY seller, window_start, window_end) AS a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    9: f"""SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, auction,
        bidder, price, bid_date_time FROM (
        SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time,
            {_ROW.format("a.id", "b.price DESC, b.date_time ASC, b.bidder")} AS n
        FROM auction a, bid b WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires)
        WHERE n <= 1""",
    11: """SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(ms), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    15: f"""SELECT DATE_FORMAT(date_time, 'yyyy-MM-dd') AS `day`, COUNT(*) AS total_bids,
        COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
        COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
        COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids, {_DISTINCT}
        FROM bid GROUP BY DATE_FORMAT(date_time, 'yyyy-MM-dd')""",
    18: f"""SELECT auction, bidder, price, channel, url, date_time, extra FROM (
        SELECT *, {_ROW.format("bidder, auction", "date_time DESC, price, channel, extra")} AS n FROM bid)
        WHERE n <= 1""",
    20: """SELECT auction, bidder, price, channel, url, b.date_time AS bid_date_time, b.extra AS bid_extra, item_name,
        description, initial_bid, reserve, a.date_time AS auction_date_time, expires, seller, category,
        a.extra AS auction_extra FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = 10""",
}
CHECKS = {
    3: "COUNT(*), SUM(id)",
    4: "COUNT(*), SUM(`avg`)",
    5: "COUNT(*), SUM(num), SUM(auction)",
    7: "COUNT(*), SUM(price), SUM(auction)",
    8: "COUNT(*), SUM(id)",
    9: "COUNT(*), SUM(id), SUM(price), SUM(bidder)",
    11: "COUNT(*), SUM(bid_count), SUM(bidder), SUM(EXTRACT(MINUTE FROM starttime))",
    15: "COUNT(*), SUM(total_bids), SUM(rank2_bidders), SUM(rank3_auctions), SUM(total_auctions)",
    18: "COUNT(*), SUM(auction), SUM(bidder), SUM(price), SUM(CHAR_LENGTH(extra))",
    20: "COUNT(*), SUM(price), SUM(auction), SUM(initial_bid)",
}
_BY_TIME = (5, 7, 8, 11)
#: Its windows take times in milliseconds only.
_CLOCK = ", ms AS CAST(date_time AS TIMESTAMP(3)), WATERMARK FOR ms AS ms - INTERVAL '1' DAY"
#: As Flink's own guides tune it for throughput: changes of a key within a bundle become one.
_SETTINGS = {
    "parallelism.default": "1",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "pipeline.object-reuse": "true",
    "taskmanager.memory.network.max": "256m",
}


def environment(number: int, folder: str) -> Any:
    """Flink's tables over the files of a folder."""
    from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in _SETTINGS.items():
        tables.get_config().set(name, value)
    clock = _CLOCK if number in _BY_TIME else ""
    for kind, columns in COLUMNS.items():
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE {kind} ({columns}{clock}) WITH "
            f"('connector' = 'filesystem', 'path' = '{folder}/{kind}', 'format' = 'parquet')"
        )
    return tables


def java_seconds() -> float:
    """Processor time of the Java process that this one started."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def first_files(folder: str, target: Path, files: int) -> None:
    """Links to the first files of each kind."""
    for kind in COLUMNS:
        (target / kind).mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(folder, kind).iterdir())[:files]:
            (target / kind / path.name).symlink_to(path.resolve())


def measured(number: int, folder: str) -> dict[str, float]:
    """Seconds and processor seconds of the job; its results are discarded."""
    from pyflink.table import TableDescriptor

    answer = environment(number, folder).sql_query(QUERIES[number])
    started, used = time.perf_counter(), java_seconds()
    answer.execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
    return {"seconds": time.perf_counter() - started, "cpu_s": java_seconds() - used}


def checked(number: int, folder: str) -> list[str]:
    """The number and sums of the results: the last row of the changelog."""
    answer = environment(number, folder).execute_sql(f"SELECT {CHECKS[number]} FROM ({QUERIES[number]})")
    with answer.collect() as changes:
        *_, last = changes
    return [str(value) for value in last]


def main(number: int, folder: str, files: int) -> None:
    with tempfile.TemporaryDirectory() as few:
        first_files(folder, Path(few), files)
        found = {"check": checked(number, few)}
    print(json.dumps(found | measured(number, folder)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
