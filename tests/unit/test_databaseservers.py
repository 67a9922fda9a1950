"""What URLs of JDBC say."""

import pytest

from watersmeet.databaseservers import jdbc_url
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
