"""`make kafka`: a broker in the foreground, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from scripts.servers.archives import ServerUnavailableError, cache_folder
from scripts.servers.kafka import Broker
from scripts.servers.registry import Registry


def main() -> None:
    """Starts what is asked for, says where it is, and waits."""
    parser = argparse.ArgumentParser(prog="make kafka", description="A Kafka broker on loopback, until Ctrl-C.")
    parser.add_argument("--registry", action="store_true", help="a schema registry, too")
    parser.add_argument("--log", action="store_true", help="show what the broker logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="watersmeet-kafka-") as folder:
        try:
            serve(Path(folder), with_registry=arguments.registry, log=arguments.log)
        except ServerUnavailableError as error:
            sys.exit(f"make kafka: {error}")
        except KeyboardInterrupt:
            print("\nended; the topics are gone")


def serve(folder: Path, *, with_registry: bool, log: bool) -> None:
    """Runs the servers until they end or this process is asked to."""
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


def _say(text: str) -> None:
    print(text, flush=True)


main()
