"""Arguments of `join` that can't be meant: refused with what to write instead."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from watersmeet.errors import error


def check_side(frame: Any, side: str) -> None:
    """Raises Error unless a side is a DataFrame of a classic Spark session whose columns can be named."""
    kind = type(frame)
    origin = kind.__module__
    if origin.startswith("pyspark.sql.connect"):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the {side} side is a Spark Connect DataFrame",
            hint="Use a classic SparkSession: SparkSession.builder.master(…) without .remote(…).",
        )
    if not isinstance(frame, DataFrame):
        given = f"{origin.partition('.')[0]}.{kind.__name__}" if origin != "builtins" else kind.__name__
        raise error(
            "INVALID_PARAMETER",
            f"the {side} side is a {given}, not a Spark DataFrame",
            hint=f"{side} = spark.createDataFrame({side}), or spark.readStream for a stream.",
        )
    dotted = next((name for name in frame.columns if "." in name or "`" in name), None)
    if dotted is not None:
        plain = dotted.replace(".", "_").replace("`", "_")
        raise error(
            "INVALID_NAME",
            f'the {side} side has a column "{dotted}": Spark takes the dot for a field of a struct',
            hint=f'{side}.withColumnRenamed("{dotted}", "{plain}")',
        )


def check_watermark(watermark: Any, side: str) -> None:
    """INVALID_PARAMETER unless it is None or a pair of a column's name and a delay."""
    if watermark is None or (
        isinstance(watermark, (tuple, list)) and len(watermark) == 2 and isinstance(watermark[0], str)
    ):
        return
    column = watermark if isinstance(watermark, str) else "ts"
    raise error(
        "INVALID_PARAMETER",
        f"{side}_watermark is {_shown(watermark)}",
        hint=f'It must be a pair of a column and a delay: {side}_watermark=("{column}", "10 seconds").',
    )


def check_names(on: Any) -> None:
    """INVALID_PARAMETER unless `on` is made of names: a Column is a calculation, which has no name here."""
    for item in on if isinstance(on, (list, tuple)) else [on]:
        for name in item if isinstance(item, (list, tuple)) else [item]:
            if not isinstance(name, str):
                raise error(
                    "INVALID_PARAMETER",
                    f"on has {_shown(name)}",
                    hint='Name the columns: on=["id"], or pairs: on=[("left_id", "right_id")].',
                )


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if type(value).__name__ == "Column" else repr(value)
