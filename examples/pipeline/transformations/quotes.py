"""A pipeline of Spark: a table of trades with their quotes, and a sink with the counts of each symbol.

A query function may not analyze a DataFrame, so `join` and `sql` are called outside of it.
"""

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

import watersmeet
from watersmeet import asof

spark = SparkSession.active()
folder = spark.conf.get("watersmeet.folder")
trades = spark.readStream.schema("symbol string, ts timestamp, price double").parquet(f"{folder}/trades")
quotes = spark.readStream.schema("symbol string, ts timestamp, bid double").parquet(f"{folder}/quotes")

priced = watersmeet.join(
    trades,
    quotes,
    on="symbol",
    how="left",
    match=asof("ts", "ts"),
    emit="arrival",
    buckets=2,
    state=f"{folder}/state/priced",
)
counted = watersmeet.sql(
    spark,
    "SELECT symbol, count(*) AS trades, max(price) AS highest FROM trades GROUP BY symbol",
    trades=trades,
    buckets=2,
    state=f"{folder}/state/counted",
)


@dp.table
def priced_trades():
    return priced


dp.create_sink("counts", spark.conf.get("watersmeet.sink"), {"path": f"{folder}/counts"})


@dp.append_flow(target="counts")
def write_counts():
    return counted
