"""`make kafka` and `make databases`: servers in the foreground, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from scripts.servers.archives import ServerUnavailableError, cache_folder
from scripts.servers.databases import Databases
from scripts.servers.kafka import Broker
from scripts.servers.registry import Registry


def main() -> None:
    """Starts what is asked for, says where it is, and waits."""
    parser = argparse.ArgumentParser(description="Servers on loopback, until Ctrl-C.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kafka = kinds.add_parser("kafka", prog="make kafka", description="A Kafka broker.")
    kafka.add_argument("--registry", action="store_true", help="a schema registry, too")
    kafka.add_argument("--log", action="store_true", help="show what the broker logs")
    kinds.add_parser("databases", prog="make databases", description="PostgreSQL, MariaDB, S3 and an Iceberg catalog.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix=f"watersmeet-{arguments.kind}-") as folder:
        try:
            if arguments.kind == "kafka":
                serve_kafka(Path(folder), with_registry=arguments.registry, log=arguments.log)
            else:
                serve_databases(Path(folder))
        except ServerUnavailableError as error:
            sys.exit(f"make {arguments.kind}: {error}")
        except KeyboardInterrupt:
            print("\nended; what they kept is gone")


def serve_kafka(folder: Path, *, with_registry: bool, log: bool) -> None:
    """Runs the broker until it ends or this process is asked to."""
    broker = Broker.started(folder / "kafka", say=_say)
    try:
        registry = Registry.started(folder / "registry", say=_say) if with_registry else None
        print(f"broker    {broker.bootstrap}  (process {broker.pid})", flush=True)
        if registry is not None:
            print(f"registry  {registry.url}")
        print(f"The programs are kept in {cache_folder()}.")
        print("Ctrl-C ends it and removes its topics.", flush=True)
        shown = 0
        while broker.is_running:
            time.sleep(0.5)
            if log:
                text = (folder / "kafka" / "broker.log").read_text(errors="replace")
                print(text[shown:], end="", flush=True)
                shown = len(text)
        sys.exit("make kafka: the broker ended by itself")
    finally:
        if broker.is_running:
            broker.stop()


def serve_databases(folder: Path) -> None:
    """Runs the databases until one ends or this process is asked to."""
    with Databases.started(folder, _say) as databases:
        print(f"\n{databases.addresses()}\n\n{databases.statements()}")
        print("-- Ctrl-C ends the servers and removes what they keep.", flush=True)
        while not (ended := databases.ended()):
            time.sleep(0.5)
        sys.exit(f"make databases: {ended} ended by itself")


def _say(text: str) -> None:
    print(text, flush=True)


main()
