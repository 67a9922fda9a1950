"""Who may connect: passwords by SCRAM, encryption, addresses, limits."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import struct
import time

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import watersmeet
from watersmeet.errors import Error
from watersmeet.server.clients import Limits
from watersmeet.server.service import Endpoint
from watersmeet.server.users import Users
from watersmeet.system.passwords import Verifier

USERS = "CREATE USER ann PASSWORD 'sécret' SUPERUSER; CREATE USER bob PASSWORD 'other';"


def self_signed(folder):
    """A certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "server.pem", folder / "server.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def test_passwords(serving):
    served = serving(USERS)
    dsn = served.dsn.replace("someone", "ann")
    with psycopg.connect(dsn, password="sécret") as client:
        assert client.info.user == "ann"
    failures = []
    for user, password in (("ann", "other"), ("nobody", "sécret"), ("ann", "")):
        with pytest.raises(psycopg.OperationalError) as found:
            psycopg.connect(served.dsn.replace("someone", user), password=password or None)
        failures.append(str(found.value))
    assert 'password authentication failed for user "ann"' in failures[0]
    assert failures[1].replace("nobody", "ann") == failures[0]


def test_a_verifier_of_postgresql_is_read():
    """RFC 7677, section 3: user `user`, password `pencil`."""
    verifier = Verifier.of("pencil", salt=bytes.fromhex("5b6d99689d12358ec04b14123f1ef91c"), iterations=4096)
    assert Verifier.read(str(verifier)) == verifier
    with pytest.raises(Error, match="verifier"):
        Verifier.read("md5abc")


def test_encryption(serving, tmp_path):
    certificate, key = self_signed(tmp_path)
    served = serving(USERS, certificate=certificate, key=key, limits=Limits(requires_tls=True))
    dsn = served.dsn.replace("someone", "bob") + f" password=other sslrootcert={certificate}"
    with psycopg.connect(f"{dsn} sslmode=verify-ca") as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="connections must be encrypted"):
        psycopg.connect(f"{dsn} sslmode=disable")


@pytest.mark.parametrize(
    ("host", "refused"), [("0.0.0.0", True), ("::", True), ("10.1.2.3", True), ("127.0.0.9", False)]
)
def test_other_machines_need_users_and_a_certificate(host, refused, tmp_path):
    with watersmeet.connect(runtime="inprocess") as connection:
        users = Users(connection.opened, trusts=False)
        if not refused:
            Endpoint(host).check()
            Endpoint(host).check_users(users)
            return
        with pytest.raises(Error, match="needs a TLS certificate"):
            Endpoint(host).check()
        certificate, key = self_signed(tmp_path)
        Endpoint(host, certificate=certificate, key=key).check()
        with pytest.raises(Error, match="needs users"):
            Endpoint(host).check_users(users)
        connection.execute("CREATE USER ann PASSWORD 'secret'")
        Endpoint(host).check_users(users)


def test_too_many_connections(serving):
    served = serving(limits=Limits(connections=1))
    with served.connect(), pytest.raises(psycopg.OperationalError, match="too many clients"):
        served.connect()
    assert connected(served.connect)


def connected(connect) -> bool:
    """Whether a client is let in: soon, as the place of one that has gone is free when the server has noticed it."""
    until = time.monotonic() + 30
    while True:
        try:
            with connect() as client:
                return client.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def test_slow_and_large_first_messages(serving):
    served = serving(limits=Limits(authentication_s=0.3))
    with socket.create_connection(("127.0.0.1", served.server.port)) as client:
        answer = client.recv(1000)
        assert b"authentication timed out" in answer
        assert client.recv(1000) == b""
    with socket.create_connection(("127.0.0.1", served.server.port)) as client:
        client.sendall(struct.pack(">iI", 1 << 30, 3 << 16))
        assert b"08P01" in client.recv(1000)
