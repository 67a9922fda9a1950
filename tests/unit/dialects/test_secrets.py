"""Passwords in the text of CREATE statements."""

from __future__ import annotations

import pytest

from watersmeet.dialects.parsing import without_secrets


@pytest.mark.parametrize(
    ("dialect", "written", "shown"),
    [
        (
            "timeplus",
            (
                "CREATE DICTIONARY d(i int, password string) PRIMARY KEY i SOURCE(MYSQL(USER 'token' PASSWORD "
                "'x''y' DB 'z')) LAYOUT(FLAT()) LIFETIME(10)"
            ),
            (
                "CREATE DICTIONARY d(i int, password string) PRIMARY KEY i SOURCE(MYSQL(USER 'token' PASSWORD "
                "'[HIDDEN]' DB 'z')) LAYOUT(FLAT()) LIFETIME(10)"
            ),
        ),
        (
            "timeplus",
            (
                "CREATE DICTIONARY d(i int) SOURCE(MYSQL(USER token PASSWORD password DB 'z')) LAYOUT(FLAT()) "
                "PRIMARY KEY i"
            ),
            (
                "CREATE DICTIONARY d(i int) SOURCE(MYSQL(USER token PASSWORD '[HIDDEN]' DB 'z')) LAYOUT(FLAT()) "
                "PRIMARY KEY i"
            ),
        ),
        (
            "timeplus",
            "CREATE DICTIONARY d(i int) PRIMARY KEY i SOURCE(MYSQL(PASSWORD -5)) LAYOUT(FLAT())",
            "CREATE DICTIONARY d(i int) PRIMARY KEY i SOURCE(MYSQL(PASSWORD '[HIDDEN]')) LAYOUT(FLAT())",
        ),
        (
            "timeplus",
            (
                "CREATE DICTIONARY d(i int) PRIMARY KEY i SOURCE(HTTP(URL 'u' CREDENTIALS(USER 'value' PASSWORD "
                "'p') HEADERS(HEADER(NAME 'Key' VALUE 'geheim') HEADER(NAME 'A' VALUE 'b')))) LAYOUT(FLAT())"
            ),
            (
                "CREATE DICTIONARY d(i int) PRIMARY KEY i SOURCE(HTTP(URL 'u' CREDENTIALS(USER 'value' PASSWORD "
                "'[HIDDEN]') HEADERS(HEADER(NAME 'Key' VALUE '[HIDDEN]') HEADER(NAME 'A' VALUE '[HIDDEN]')))) "
                "LAYOUT(FLAT())"
            ),
        ),
        (
            "timeplus",
            "CREATE EXTERNAL TABLE e(i int, password string) SETTINGS password = geheim, type='mysql', user='password'",
            (
                "CREATE EXTERNAL TABLE e(i int, password string) SETTINGS password = '[HIDDEN]', type='mysql', "
                "user='password'"
            ),
        ),
        (
            "timeplus",
            "CREATE EXTERNAL TABLE e SETTINGS type='mysql' /* password 'q' */, password='a', table='t'",
            "CREATE EXTERNAL TABLE e SETTINGS type='mysql' /* password 'q' */, password='[HIDDEN]', table='t'",
        ),
        (
            "risingwave",
            "CREATE SOURCE s (password varchar) WITH (a.sasl.password = 'p', b = 'q') FORMAT PLAIN ENCODE JSON",
            "CREATE SOURCE s (password varchar) WITH (a.sasl.password = '[HIDDEN]', b = 'q') FORMAT PLAIN ENCODE JSON",
        ),
        (
            "timeplus",
            "CREATE NAMED COLLECTION password AS user = 'u', password='p' NOT OVERRIDABLE, n = 4",
            "CREATE NAMED COLLECTION password AS user = 'u', password='[HIDDEN]' NOT OVERRIDABLE, n = 4",
        ),
        (
            "timeplus",
            (
                "CREATE EXTERNAL STREAM s(a int) SETTINGS kafka_schema_registry_credentials='u:p', "
                "properties='ssl.key.password=p'"
            ),
            (
                "CREATE EXTERNAL STREAM s(a int) SETTINGS kafka_schema_registry_credentials='[HIDDEN]', "
                "properties='[HIDDEN]'"
            ),
        ),
        (
            "timeplus",
            "CREATE EXTERNAL STREAM s(a int) SETTINGS properties='linger.ms=1'",
            "CREATE EXTERNAL STREAM s(a int) SETTINGS properties='linger.ms=1'",
        ),
        (
            "timeplus",
            "CREATE STREAM s(password string, token string)",
            "CREATE STREAM s(password string, token string)",
        ),
    ],
)
def test_passwords_are_hidden(dialect, written, shown):
    assert without_secrets(written, dialect) == shown


def test_options_with_points_are_hidden_by_their_whole_names():
    written = (
        "CREATE SINK k FROM t WITH (s3.access.key = 'a', s3.secret.key = 'b', gcs.service.account = 'c', "
        "jdbc.url = 'jdbc:postgresql://h/d?password=p', location = 'x')"
    )
    hidden = "'[HIDDEN]'"
    shown = (
        f"CREATE SINK k FROM t WITH (s3.access.key = {hidden}, s3.secret.key = {hidden}, "
        f"gcs.service.account = {hidden}, jdbc.url = {hidden}, location = 'x')"
    )
    assert without_secrets(written, "risingwave") == shown
