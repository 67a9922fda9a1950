"""A certificate for servers on loopback, made by the keytool that comes with Java."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts.servers.archives import java

KEYS, CERTIFICATE = "server.p12", "server.pem"


def create(folder: Path, password: str) -> None:
    """Writes keys (server.p12) and the certificate that clients trust (server.pem).

    password: of the keys.
    """
    keytool = str(Path(java()).with_name("keytool"))
    store = ["-keystore", str(folder / KEYS), "-storetype", "PKCS12", "-storepass", password, "-alias", "server"]
    names = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost"]
    for arguments in (
        ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "30", *names],
        ["-exportcert", "-rfc", "-file", str(folder / CERTIFICATE)],
    ):
        subprocess.run([keytool, *arguments, *store], check=True, capture_output=True)
