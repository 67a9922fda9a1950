"""An S3 server on loopback: moto, which keeps everything in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from scripts.servers.archives import ServerUnavailableError
from scripts.servers.process import Process, free_ports
from scripts.servers.server import Server, try_ports

REGION, ACCESS_KEY, SECRET_KEY = "us-east-1", "watersmeet", "s3-secret-key"


class S3(Server):
    """A server that answers. It runs until `stop`, or until its owner is gone; its objects are gone with it."""

    def __init__(self, port: int, process: Process | None = None) -> None:
        super().__init__(process)
        self.port = port

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> S3:
        """A new server, whose log is in a new folder.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its packages are not installed,
        ServerFailedError if it does not start.
        """
        for package in ("moto", "flask", "flask_cors"):
            if find_spec(package) is None:
                raise ServerUnavailableError(f"the package {package} is not installed")
        say("starting the S3 server")
        folder.mkdir(parents=True)
        server = cls(*free_ports(1))

        def choose() -> None:
            (server.port,) = free_ports(1)

        def start() -> None:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(server.port)]
            server._process = Process(command, folder / "s3.log", owner, folder if remove_folder else None)
            server._process.wait_until(server.answers, "the S3 server")

        try_ports(start, choose)
        return server

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/moto-api/data.json", timeout=2) as answer:
                return answer.status == 200
        except (URLError, OSError):
            return False

    def client(self, service: str = "s3", access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> Any:
        """A client of the tests' own library, boto3."""
        import boto3  # noqa: PLC0415 - comes with moto

        keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
        return boto3.client(service, endpoint_url=self.url, region_name=REGION, **keys)

    def require_credentials(self) -> tuple[str, str]:
        """From now on requests need a key that the server knows; gives (access key, secret key) of a user."""
        iam = self.client("iam")
        iam.create_user(UserName="reader")
        everything = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
        iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=everything)
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        urlopen(Request(f"{self.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})).close()
        return key["AccessKeyId"], key["SecretAccessKey"]

    def to_json(self) -> str:
        """What another process needs to use it, for `from_json`."""
        return str(self.port)

    @classmethod
    def from_json(cls, text: str) -> S3:
        """A server of another process: it can be used, but not stopped."""
        return cls(int(text))
