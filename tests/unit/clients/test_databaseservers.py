"""What URLs of JDBC say, and servers that refuse."""

import ssl

import pytest
from tests.servers import MYSQL_PASSWORD, MYSQL_USER

from watersmeet.connectors.clickhouse.client import failure
from watersmeet.connectors.databases.servers import Server, jdbc_url, tls_context
from watersmeet.connectors.mysql.client import connect
from watersmeet.errors import Error


def test_urls_of_jdbc_are_read():
    found = jdbc_url("jdbc:postgresql://h:5433/d%20b?user=u&password=p&sslmode=require&currentSchema=s", None, None)
    server = found.server
    assert (server.host, server.port, server.database, server.user, server.password) == ("h", 5433, "d b", "u", "p")
    assert (found.system, server.ssl_mode, found.properties["currentSchema"]) == ("postgres", "require", "s")
    with pytest.raises(Error, match="oracle"):
        jdbc_url("jdbc:oracle://h/d", "u", "p")
    with pytest.raises(Error, match="host, the database and the user"):
        jdbc_url("jdbc:postgresql:d", "u", "p")


@pytest.mark.parametrize(
    ("url", "port", "mode"),
    [
        ("jdbc:mysql://h/d", 3306, "prefer"),
        ("jdbc:mariadb://h:3307/d?sslMode=verify-full", 3307, "verify-full"),
        ("jdbc:mariadb://h/d?sslMode=trust", 3306, "require"),
        ("jdbc:mysql://h/d?sslMode=VERIFY_IDENTITY", 3306, "verify-full"),
        ("jdbc:mysql://h/d?useSSL=true", 3306, "require"),
        ("jdbc:mysql://h/d?useSSL=false", 3306, "disable"),
    ],
)
def test_urls_of_mysql_and_mariadb_name_one_system(url, port, mode):
    found = jdbc_url(url, "u", "p")
    assert (found.system, found.server.port, found.server.ssl_mode) == ("mysql", port, mode)
    with pytest.raises(Error, match='ssl_mode can\'t be "sure"'):
        jdbc_url("jdbc:mysql://h/d?sslMode=sure", "u", "p")


@pytest.mark.parametrize(
    ("status", "text", "condition", "said"),
    [
        (404, "Code: 60. DB::Exception: Table d.t doesn't exist. (UNKNOWN_TABLE) (version 24.8.1)",
         "UNDEFINED_OBJECT", "Table d.t doesn't exist"),
        (500, "Code: 60, e.displayText() = DB::Exception: Table t doesn't exist., e.what() = DB::Exception",
         "UNDEFINED_OBJECT", "Table t doesn't exist."),
        (403, "Code: 516. DB::Exception: u: Authentication failed. (AUTHENTICATION_FAILED)",
         "CONNECTOR_OPTION", "does not let user"),
        (500, "Code: 241. DB::Exception: Memory limit exceeded: would use 1 GiB. (MEMORY_LIMIT_EXCEEDED)",
         "RUNTIME_UNAVAILABLE", "can't be reached"),
        (502, "<html>Bad Gateway</html>", "RUNTIME_UNAVAILABLE", "can't be reached"),
        (400, "Port 9001 is for clickhouse-client program.", "CONNECTOR_OPTION", "does not answer as"),
    ],
)  # fmt: skip
def test_what_clickhouse_says(status, text, condition, said):
    found = failure(Server("h", 1, "u", "p", "d"), status, {}, text)
    assert (found.condition, said in found.message) == (condition, True), found.message


def test_certificates_are_read_only_to_check_that_of_the_server(monkeypatch):
    read, really = [], ssl.SSLContext.load_default_certs
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *a: read.append(1) or really(*a))
    assert tls_context("prefer") is None
    unchecked = tls_context("require")
    assert (unchecked.verify_mode, unchecked.check_hostname, len(read)) == (ssl.CERT_NONE, False, 0)
    assert tls_context("verify-ca").verify_mode == ssl.CERT_REQUIRED
    assert not tls_context("verify-ca").check_hostname
    assert tls_context("verify-full").check_hostname
    assert len(read) == 3


@pytest.mark.slow  # the server makes a key first
def test_a_connection_to_mysql_takes_tls_and_reads_no_certificates(own_mysql, monkeypatch):
    server = own_mysql.server
    server.kill()
    settings = server.folder / "settings"
    settings.write_text(settings.read_text().replace("ssl = OFF", "ssl = ON"))
    server.start()
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("certificates are read"))
    for mode in ("prefer", "require"):
        where = Server("127.0.0.1", server.port, MYSQL_USER, MYSQL_PASSWORD, own_mysql.name, mode)
        with connect(where) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            assert cursor.fetchone()[1]


def test_a_connection_to_mysql_without_tls_reads_no_certificates(mysql, monkeypatch):
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("certificates are read"))
    where = Server("127.0.0.1", mysql.server.port, MYSQL_USER, MYSQL_PASSWORD, mysql.name)
    with connect(where) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        assert not cursor.fetchone()[1]
