"""Converts the options of SQLstream's foreign streams and foreign tables to options of connectors.

SQLstream, "Integrating Kafka", "Integrating Files", "CREATE FOREIGN STREAM".

Foreign tables use servers of wrapper SYS_JDBC.

SQLstream, "CREATE SERVER", "CREATE FOREIGN TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from watersmeet.catalog import External, MessageFormat
from watersmeet.catalog.parts import Encoding
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.databases.servers import jdbc_url
from watersmeet.connectors.externalstreams import WRITTEN, properties_file
from watersmeet.connectors.files.options import absolute_path
from watersmeet.connectors.kafka.client import starting_at
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.jsonpayloads import PATH, ROW_PATH, JsonPathReader, message_rules
from watersmeet.formats.xmltext import ATTRIBUTES, DATA_ELEMENTS, ELEMENTS, ROW_ELEMENTS, ROW_TAGS, XmlReader
from watersmeet.values.types import VARCHAR, Field

_PARTS: Final = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "MMM": "%b",
    "dd": "%d",
    "DDD": "%j",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%f",
    "a": "%p",
    "EEE": "%a",
}

_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


def date_format(text: str, option: str) -> str:
    """Converts a format of Java's SimpleDateFormat to one of `strftime`, where `%f` stands for milliseconds.

    Raises CONNECTOR_OPTION for a format with other parts.
    """
    out, place = [], 0
    for found in _TOKEN.finditer(text):
        if found.start() != place or (found[2] and found[0] not in _PARTS):
            break
        place = found.end()
        if found[2]:
            out.append(_PARTS[found[0]])
        else:
            plain = found[0] if found[1] is None else found[1].replace("''", "'") or "'"
            out.append(plain.replace("%", "%%"))
    if place != len(text):
        raise error(
            "CONNECTOR_OPTION",
            f'option {option} can\'t be "{text}"',
            hint=f"It is made of {', '.join(_PARTS)} and texts in single quotes.",
        )
    return "".join(out)


#: The kinds of adapters of predefined servers, by server name.
SERVERS: Final = {"KAFKA10_SERVER": "KAFKA10", "KAFKA_SERVER": "KAFKA10", "FILE_SERVER": "FILE"}

#: Kinds of earlier versions: the kind that took their place.
EARLIER_KINDS: Final = {"KAFKA": "KAFKA10"}

#: The kind of adapter by a word of the adapter's class, for wrappers that a script declares.
CLASSES: Final = {"FileSet": "FILE", "FileSink": "FILE", "Kafka": "KAFKA10"}

#: SQLstream's adapters that Watersmeet does not support.
LACKING_SERVERS: Final = (
    "AMQP10_SERVER",
    "AMQP_LEGACY_SERVER",
    "MQTT_SERVER",
    "MAIL_SERVER",
    "KINESIS_SERVER",
    "HTTP_SERVER",
    "WEBSOCKET_SERVER",
    "MONGO_SERVER",
    "SNOWFLAKE_SERVER",
    "NET_SERVER",
    "FILE_VFS_SERVER",
    "HDFS_SERVER",
    "S3_SERVER",
    "IBMMQ_SERVER",
    "PUBSUB_SERVER",
)

KINDS: Final = ("KAFKA10", "FILE")
LACKING_KINDS: Final = tuple(name.removesuffix("_SERVER") for name in LACKING_SERVERS)

#: The prefix of names of columns that show the location of a row.
PROVENANCE_PREFIX: Final = "SQLSTREAM_PROV_"

#: The columns that show the location of a message, with the part of the message.
PROVENANCE: Final = {
    "SQLSTREAM_PROV_KAFKA_PARTITION": "partition",
    "SQLSTREAM_PROV_KAFKA_TIMESTAMP": "timestamp",
    "SQLSTREAM_PROV_KAFKA_KEY": "key",
    "SQLSTREAM_PROV_KAFKA_OFFSET": "offset",
    "SQLSTREAM_PROV_KAFKA_TOPIC": "topic",
}

#: The columns that show the file of a row and the location in it.
FILE_PROVENANCE: Final = {
    "SQLSTREAM_PROV_FILE_SOURCE_FILE": "name",
    "SQLSTREAM_PROV_FILE_LINE_NUMBER": "line",
    "SQLSTREAM_PROV_FILE_MODIFIED_TIME": "modified",
}

#: The types that these columns may have, by part.
FILE_PART_TYPES: Final = {
    "name": ("varchar",),
    "line": ("bigint", "integer"),
    "modified": ("timestamp", "timestamptz"),
}

_ENCODINGS: Final[dict[str, Encoding]] = {"JSON": "json", "CSV": "csv", "AVRO": "avro", "XML": "xml"}

_SPEED: Final = "how fast rows are read and written follows from the machine"
_ONCE: Final = "each row is delivered once, in batches of commits"
_OF_CLIENT: Final = "Watersmeet's client of Kafka decides about it"

#: Options of the product without effect, with the reason.
IDLE: Final[dict[str, str]] = {
    **dict.fromkeys(("MAX_POLL_RECORDS", "POLL_TIMEOUT", "BUFFER_SIZE", "FETCH_SIZE", "PARSER_QUEUE_SIZE"), _SPEED),
    **dict.fromkeys(("QUEUE_SIZE", "INGRESS_DELAY_INTERVAL", "INGRESS_FILE_SCAN_WAIT", "MAX_BYTES_PER_FETCH"), _SPEED),
    **dict.fromkeys(("FILE_COMPRESSION_BUFFER", "FORMATTER_QUEUE_SIZE", "WRITE_BUFFER_SIZE"), _SPEED),
    **dict.fromkeys(("TRANSACTION_ROW_LIMIT", "TRANSACTION_ROWCOUNT_LIMIT", "TRANSACTION_ROWTIME_LIMIT"), _ONCE),
    **dict.fromkeys(("HA_ROLLOVER_TIMEOUT", "COMMIT_METADATA_COLUMN_NAME", "PUMP.NAME", "GROUP_ID"), _ONCE),
    "FORMATTER_CHARSET": "texts are written in UTF-8",
    "METRICS_PER_PARTITION": "SHOW JOBS has the state of each source",
    "STRICT_PARSING": "a field that can't be read is NULL, a record that can't be decoded is counted",
}

#: Refused options, which would change the rows, each with the way round.
_LACKING: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("INDEX_TOPIC_NAME", "INDEX_TOPIC_NAME_SUFFIX", "INDEX_TOPIC_SEED_BROKERS", "PARTITION_OFFSET_QUERY"),
        "STARTING_TIME and STARTING_OFFSET say where reading begins; it resumes after a restart.",
    ),
    "CLIENT_ID_QUERY": "CLIENT_ID is a text.",
    "ESCAPE_ALL": "Write FORMATTER 'JSON' or 'CSV', which escape what their readers need.",
    "QUOTED_COLUMNS": "CSV quotes the fields that need it.",
    "FILE_TYPE": "Files whose names end in .gz are read compressed.",
    **dict.fromkeys(
        ("DATE_FORMAT", "TIME_FORMAT", "TIMESTAMP_FORMAT", "PARSER_TIMESTAMP_FORMAT"),
        "Declare the column as VARCHAR, and convert it with CHAR_TO_TIMESTAMP.",
    ),
    **dict.fromkeys(
        ("ERROR_POLICY", "PARSER_ERROR_POLICY"), "Records that can't be decoded are set aside: SHOW DEAD LETTERS."
    ),
}

#: The option with a query that returns other options.
OPTIONS_QUERY: Final = "OPTIONS_QUERY"

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}

#: The properties that only Java clients have.
_JAVA: Final = (
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
    "group.id",
    "auto.offset.reset",
    "enable.auto.commit",
    "isolation.level",
    "transactional.id",
    "acks",
    "max.poll.records",
    "buffer.memory",
    "send.buffer.bytes",
    "receive.buffer.bytes",
    "max.in.flight.requests.per.connection",
)

#: A path that consists of a member's name: after `$.` at the top level, after `$..` at any level.
_MEMBER: Final = re.compile(r"\$(\.\.?)([\w-]+)")

_JAAS: Final = re.compile(r'(username|password)\s*=\s*"([^"]*)"')


@dataclass(frozen=True)
class Foreign:
    """The meaning of the options of a foreign stream.

    connector: the options of the connector kafka, file or, to write files, rotating_file. format: the format of
    messages and of written files. members: the members of a message by column, if they have another name. is_read:
    whether it has a parser. rowtime_written: whether ROWTIME is also written. notices: about options without effect.
    """

    connector: dict[str, str]
    format: MessageFormat | None
    members: dict[str, str] = field(default_factory=dict)
    is_read: bool = True
    rowtime_written: bool = True
    notices: tuple[str, ...] = ()


class _Given:
    """The options of a statement, which are taken one by one. Only names of columns in options may differ just in
    case.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.upper(): (name, value) for name, value in given.items()}
        self._known: list[str] = []
        self.notices: list[str] = []

    def take(self, *names: str) -> str | None:
        self._known += names
        found = [self._given.pop(n.upper()) for n in names if n.upper() in self._given]
        if len({value for _, value in found}) > 1:
            refuse(f"options {' and '.join(n for n, _ in found)} contradict each other")
        return found[0][1] if found else None

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = (self.take(name) or str(default)).lower()
        if value not in ("true", "false"):
            refuse(f'option {name} can\'t be "{value}"', hint="It must be true or false.")
        return value == "true"

    def paths(self, columns: Sequence[str], suffix: str) -> dict[str, str]:
        """The paths in the options `"column_PATH"` or `"column_XPATH"`, by column."""
        found = {c: self.take(f"{c}_{suffix}") for c in columns}
        return {c: path for c, path in found.items() if path is not None}

    def lower(self) -> dict[str, str]:
        """The options with a dot in their names, which are properties of the client."""
        found = [self._given.pop(n) for n in list(self._given) if "." in n]
        return {name.lower(): value for name, value in found}

    def idle(self, name: str, reason: str) -> None:
        """Notes that an option has no effect."""
        self.notices.append(f"option {name} has no effect: {reason}")

    def finish(self) -> None:
        for name, reason in IDLE.items():
            if (self.take(name) or "") != "":
                self.idle(name, reason)
        for name, instead in _LACKING.items():
            if (self.take(name) or "").lower() not in ("", "false", "0", "none"):
                raise error(
                    "FEATURE_NOT_SUPPORTED", f"option {name} of a foreign stream is not supported", hint=instead
                )
        for name, _ in self._given.values():
            hint = did_you_mean(name, self._known)
            refuse(f'there is no option "{name}" of this foreign stream', hint=hint)


def foreign_options(kind: str, options: Mapping[str, str], columns: Sequence[str]) -> Foreign:
    """The meaning of the options of a stream, including those of its server. kind: the kind of the server.

    columns: the names of columns in messages or records. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED.
    """
    given = _Given(options)
    meant = _topic(given, columns) if kind == "KAFKA10" else _files(given, columns)
    return replace(meant, notices=tuple(given.notices))


def _topic(given: _Given, columns: Sequence[str]) -> Foreign:
    topic = given.take("TOPIC")
    servers, port = given.take("SEED_BROKERS", "bootstrap.servers"), given.take("PORT")
    if servers and port:
        servers = ",".join(s if ":" in s else f"{s.strip()}:{port}" for s in servers.split(","))
    for name, value in (("TOPIC", topic), ("SEED_BROKERS", servers)):
        if not value:
            refuse(f'a foreign stream of Kafka needs the option "{name}"', hint=f"Write \"{name}\" '…'.")
    form, members, is_read = _form(given, columns)
    connector = {"connector": "kafka", "topic": topic or "", "properties.bootstrap.server": servers or ""}
    if given.take("isolation.level") not in (None, "read_committed"):
        given.idle("isolation.level", "only messages of committed transactions are read")
    if partitions := given.take("PARTITION"):
        connector["shards"] = partitions
    connector |= _start(given) or starting_at("latest")
    properties: dict[str, str] = {}
    for option in ("kafka.consumer.config", "kafka.producer.config"):
        path = given.take(option)
        properties |= properties_file(option, path) if path is not None else {}
    if (client := given.take("CLIENT_ID", "client.id")) is not None:
        properties["client.id"] = client
    if given.take("pump.name"):
        given.idle("pump.name", IDLE["PUMP.NAME"])
    properties |= given.lower()
    for name in properties.keys() & {*_JAVA}:
        given.idle(name, _OF_CLIENT)
    rowtime = given.flag("FORMATTER_INCLUDE_ROWTIME", default=True)
    given.finish()
    connector |= {f"properties.{n}": v for n, v in _of_client(properties).items()}
    return Foreign(connector, form, members, is_read, rowtime)


def _start(given: _Given) -> dict[str, str]:
    """The connector's options of the start offset; empty if there are none."""
    start, offset = given.take("STARTING_TIME"), given.take("STARTING_OFFSET")
    if offset is not None and offset.strip() != "-1":
        if not offset.isdecimal():
            refuse(f'option STARTING_OFFSET can\'t be "{offset}"', hint="It must be a whole number.")
        return {"scan.startup.offsets": offset}
    if not start:
        return {}
    return starting_at(start.lower() if start.upper() in ("EARLIEST", "LATEST") else start)


def starting_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the connector kafka for STARTING_TIME and STARTING_OFFSET in `options`; empty without these.
    Raises CONNECTOR_OPTION.

    CONNECTOR_OPTION.
    """
    return _start(_Given(options))


def _of_client(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of the Java client under librdkafka's names."""
    found = {n: v for n, v in properties.items() if n not in _JAVA and n != "sasl.jaas.config"}
    for name, value in _JAAS.findall(properties.get("sasl.jaas.config", "")):
        found[f"sasl.{name}"] = value
    for name in [n for n in found if "truststore" in n or "keystore" in n]:
        refuse(f"option {name} is for Java alone", hint="Write ssl.ca.location, the path of a certificate.")
    return found


def _form(given: _Given, columns: Sequence[str]) -> tuple[MessageFormat, dict[str, str], bool]:
    """The format of messages, the members of columns, and whether there is a parser."""
    parser, formatter = given.take("PARSER"), given.take("FORMATTER")
    if parser is None and formatter is None:
        refuse("a foreign stream needs a PARSER or a FORMATTER", hint="Write \"PARSER\" 'JSON'.")
    name = (parser or formatter or "").upper()
    if parser is not None and formatter is not None and parser.upper() != formatter.upper():
        refuse("options PARSER and FORMATTER of one stream differ", hint="Declare one stream for each.")
    options, members = _encoding_options(given, columns, name)
    many_rows = name in ("CSV", "JSON")
    return MessageFormat("plain", _ENCODINGS[name], None, options, "null", many_rows), members, parser is not None


def _encoding_options(given: _Given, columns: Sequence[str], name: str) -> tuple[dict[str, str], dict[str, str]]:
    """The options of an encoding, and the members of columns. Raises FEATURE_NOT_SUPPORTED."""
    if name == "JSON":
        members, options = _json_paths(given, columns)
        return options | WRITTEN, members
    if name == "CSV":
        return _csv_options(given), {}
    if name == "AVRO":
        return _avro_options(given), _avro_members(given, columns)
    if name == "XML":
        return _xml_options(given, columns), {}
    lines = "Read the lines of files by PARSER 'NONE', and take them apart by REGEX_LOG_PARSE."
    hint = lines if name == "KV" else f"There are {', '.join(_ENCODINGS)}; of files also NONE."
    raise error("FEATURE_NOT_SUPPORTED", f"PARSER or FORMATTER '{name}' is not supported", hint=hint)


def _json_paths(given: _Given, columns: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The members of columns that have another name, and the options for paths. A column without a path is the first
    member with its name at any depth.
    """
    row_path = given.take("ROW_PATH") or "$"
    paths = {c: f"$..{c}" for c in columns} | given.paths(columns, "PATH")
    members, deeper = _members(paths)
    options = {PATH + members.get(c, c): path for c, path in deeper.items()}
    if row_path not in ("$", "$[*]", "$[:]", "$[]", "$[0:]"):
        options[ROW_PATH] = row_path
    JsonPathReader([Field(members.get(c, c), VARCHAR) for c in columns], message_rules({}), options)
    return members, options


def _members(paths: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The members in paths whose names differ from those of their columns, and by column the paths to evaluate."""
    simple = {c: found for c, path in paths.items() if (found := _MEMBER.fullmatch(path.strip())) is not None}
    members = {c: found[2] for c, found in simple.items() if found[2] != c}
    deeper = {c: path for c, path in paths.items() if c not in simple or simple[c][1] == ".."}
    return members, deeper


def _csv_options(given: _Given) -> dict[str, str]:
    _encoded(given)
    if (quote := given.take("QUOTE_CHARACTER")) not in (None, '"'):
        raise error("FEATURE_NOT_SUPPORTED", f"QUOTE_CHARACTER {quote} of messages is not supported")
    rows = _sign(given.take("ROW_SEPARATOR") or "\n")
    if rows not in ("\n", "\r\n"):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "this ROW_SEPARATOR is not supported",
            hint="A row is a line: it ends with \\n or \\r\\n.",
        )
    without_header = "false" if given.flag("SKIP_HEADER") else "true"
    return {"delimiter": _sign(given.take("SEPARATOR") or ","), "without_header": without_header}


def _sign(text: str) -> str:
    r"""A separator, where `\t`, `\n`, `\r` and `\u0009` stand for the characters that they name."""
    plain = {"t": "\t", "n": "\n", "r": "\r"}
    return re.sub(r"\\(?:([tnr])|u([0-9A-Fa-f]{4}))", lambda m: plain.get(m[1] or "") or chr(int(m[2], 16)), text)


def _avro_options(given: _Given) -> dict[str, str]:
    known = {
        "schema.location": given.take("AVRO_SCHEMA_LOCATION", "AVRO_SCHEMA_FILE_LOCATION"),
        "schema.registry": given.take("schema.registry.url", "SCHEMA_REGISTRY_URL"),
    }
    return {n: v for n, v in known.items() if v}


def _avro_members(given: _Given, columns: Sequence[str]) -> dict[str, str]:
    members, deeper = _members(given.paths(columns, "PATH"))
    for column, path in deeper.items():
        raise error("FEATURE_NOT_SUPPORTED", f'the path "{path}" of column "{column}" of AVRO is not supported')
    return members


def _xml_options(given: _Given, columns: Sequence[str]) -> dict[str, str]:
    """The options of `formats.xmltext` and of its writer."""
    _encoded(given)
    options = {PATH + c: path for c, path in given.paths(columns, "XPATH").items()}
    if tags := given.take("PARSER_XML_ROW_TAGS"):
        options[ROW_TAGS] = tags
    if given.flag("PARSER_XML_USE_ATTRIBUTES"):
        options[ATTRIBUTES] = "true"
    XmlReader([Field(c, VARCHAR) for c in columns], options)
    elements = {ELEMENTS + c: given.take(f"{c}_ELEMENTS") for c in columns}
    elements |= {ROW_ELEMENTS: given.take("ROW_ELEMENTS"), DATA_ELEMENTS: given.take("DATA_ELEMENTS")}
    options |= {n: v for n, v in elements.items() if v is not None}
    return options


def _encoded(given: _Given) -> None:
    charset = given.take("CHARACTER_ENCODING")
    if charset is not None and charset.upper().replace("-", "") not in ("UTF8", "ASCII", "USASCII"):
        raise error("FEATURE_NOT_SUPPORTED", f"CHARACTER_ENCODING {charset} is not supported", hint="It is UTF-8 here.")


def _files(given: _Given, columns: Sequence[str]) -> Foreign:
    directory = given.take("DIRECTORY")
    if not directory:
        refuse('a foreign stream of files needs the option "DIRECTORY"', hint="Write \"DIRECTORY\" '…'.")
    if (formatter := given.take("FORMATTER")) is not None:
        return _written_files(given, columns, absolute_path(directory), formatter.upper())
    if (parser := given.take("PARSER")) is None:
        refuse("a foreign stream needs a PARSER or a FORMATTER", hint="Write \"PARSER\" 'CSV'.")
    name = parser.upper()
    connector = {"connector": "file", "path": directory or "", "format": name.lower(), "null_for_bad": "true"}
    if name == "NONE":
        connector |= _lines(given, columns) | _which_files(given)
        given.finish()
        return Foreign(connector, None)
    quote = (given.take("QUOTE_CHARACTER") or '"') if name == "CSV" else ""
    options, members = _encoding_options(given, columns, name)
    if name == "CSV":
        header = "true" if options.pop("without_header") == "false" else "false"
        connector |= {"quote": quote, "header": header}
    connector |= {n: v for n, v in options.items() if n not in WRITTEN and not n.startswith("schema.")}
    connector |= _which_files(given)
    given.finish()
    return Foreign(connector, None, members)


def _lines(given: _Given, columns: Sequence[str]) -> dict[str, str]:
    """The options of a file whose lines are the values of one column, as those of CSV with a sign that no text has."""
    if len(columns) != 1:
        refuse(f"PARSER 'NONE' reads one column, not {len(columns)}", hint="Its column is the line.")
    header = _csv_options(given)["without_header"] == "false"
    return {"format": "csv", "delimiter": "\x01", "quote": "", "header": "true" if header else "false"}


def _written_files(given: _Given, columns: Sequence[str], directory: str, name: str) -> Foreign:
    """The meaning of a stream that pumps write to files, whose names follow from its options."""
    if given.take("PARSER") is not None:
        refuse("a foreign stream of files has a PARSER or a FORMATTER", hint="Declare one stream for each.")
    if given.take("FILENAME_PATTERN"):
        given.idle("FILENAME_PATTERN", "it is about files that are read")
    connector = {"connector": "rotating_file", "path": directory}
    seconds, size = given.take("FILE_ROTATION_TIME"), given.take("FILE_ROTATION_SIZE")
    if seconds is not None:
        connector["seconds"] = str(_amount("FILE_ROTATION_TIME", seconds, _SECONDS))
    if size is not None:
        connector["bytes"] = str(int(_amount("FILE_ROTATION_SIZE", size, _BYTES)))
    if not any(float(connector.get(n, "0")) for n in ("seconds", "bytes")):
        refuse(
            "files that are written need FILE_ROTATION_TIME or FILE_ROTATION_SIZE",
            hint="Write \"FILE_ROTATION_TIME\" '1m'.",
        )
    if not given.flag("FILE_ROTATION_RESPECT_ROWTIME", default=True):
        connector["by_rowtime"] = "false"
    known = {
        "column": given.take("FILE_ROTATION_WATERMARK_COLUMN"),
        "prefix": given.take("FILENAME_PREFIX"),
        "suffix": given.take("FILENAME_SUFFIX"),
        "growing": given.take("ORIGINAL_FILENAME"),
    }
    connector |= {n: v for n, v in known.items() if v is not None}
    for key, option in (
        ("prefix", "FILENAME_PREFIX"),
        ("suffix", "FILENAME_SUFFIX"),
        ("growing", "ORIGINAL_FILENAME"),
    ):
        if {"/", "\0"} & set(connector.get(key, "")):
            refuse(f"option {option} can't have a /", hint="DIRECTORY says where the files are.")
    if connector.get("growing") in ("", ".", ".."):
        refuse("option ORIGINAL_FILENAME is no name of a file", hint="Write \"ORIGINAL_FILENAME\" 'pending.csv'.")
    if (times := given.take("FILENAME_DATE_FORMAT")) is not None:
        connector["date_format"] = date_format(times, "FILENAME_DATE_FORMAT")
    options, members = _encoding_options(given, columns, name)
    if name == "CSV":
        options["without_header"] = "false" if given.flag("WRITE_HEADER") else "true"
    rowtime = given.flag("FORMATTER_INCLUDE_ROWTIME", default=True)
    given.finish()
    form = MessageFormat("plain", _ENCODINGS[name], None, options)
    return Foreign(connector, form, members, is_read=False, rowtime_written=rowtime)


def _amount(option: str, text: str, units: Mapping[str, float]) -> float:
    """The number in a text such as `10m`. Raises CONNECTOR_OPTION."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        names = ", ".join(u for u in units if u)
        refuse(f'option {option} can\'t be "{text}"', hint=f"It is a whole number and a unit: {names}.")
    return int(found[1]) * units[found[2]]


def _which_files(given: _Given) -> dict[str, str]:
    """The options of the file connector that determine the files to read and their order."""
    found = {}
    pattern, form = given.take("FILENAME_PATTERN"), given.take("FILENAME_DATE_FORMAT")
    if pattern is not None:
        found["name_regex"] = pattern
    if given.flag("SORT_BY_TIMESTAMP_IN_FILENAME"):
        if pattern is None or not _groups(pattern):
            refuse(
                "SORT_BY_TIMESTAMP_IN_FILENAME needs a FILENAME_PATTERN with a group, which is the time",
                hint="Write \"FILENAME_PATTERN\" 'orders-(\\d+)\\.csv'.",
            )
        found["sorted_by"] = "" if form is None else date_format(form, "FILENAME_DATE_FORMAT")
    is_static, repeat = given.flag("STATIC_FILES"), given.take("REPEAT") or "0"
    if is_static:
        found["settle_ms"] = "0"  # the files don't grow
    if repeat.upper() != "FOREVER" and re.fullmatch(r"-?\d+", repeat) is None:
        refuse(f'option REPEAT can\'t be "{repeat}"', hint="It is a whole number, or FOREVER.")
    times = -1 if repeat.upper() == "FOREVER" else max(-1, int(repeat))
    if times and not is_static:
        refuse("option REPEAT is for files that don't change", hint="Add STATIC_FILES 'true'.")
    return found | ({"repeat": str(times)} if times else {})


def _groups(pattern: str) -> int:
    """The number of groups of a regular expression; 0 for an invalid one, which the connector will reject."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return 0


#: The kind of servers with the wrapper SYS_JDBC.
SYS_JDBC: Final = "SYS_JDBC"

#: The database system by the prefix of a JDBC driver's class name.
_DRIVERS: Final = {"org.postgresql.": "postgres", "com.mysql.": "mysql", "org.mariadb.": "mysql"}

_NO_EFFECT: Final = "Accepted with a notice: connections and batches are handled in another way."

#: Options of wrapper SYS_JDBC without effect.
IDLE_OF_TABLES: Final = (
    "fetch_size", "transaction_row_limit", "transaction_rowcount_limit", "transaction_rowtime_limit", "autocommit",
    "dialect", "jndi_writeback", "pollinginterval", "txinterval", "login_timeout", "validation_query",
    "max_idle_connections", "eviction_timer_period_millis", "min_eviction_idle_millis", "extended_catalog",
    "use_schema_name_as_foreign_qualifier", "table_prefix_present", "type_substitution", "pump.name",
)  # fmt: skip

TABLE_OPTIONS: Final = OptionSet(
    "foreign tables",
    (
        OptionSpec("url", "The URL of the database: `jdbc:postgresql://…` or `jdbc:mysql://…`.", is_needed=True),
        OptionSpec("user_name", "The user, unless the URL has it."),
        OptionSpec("password", "The password of the user, unless the URL has it.", secret=True),
        OptionSpec("driver_class", "The class of the driver, which has to match the URL."),
        OptionSpec("schema_name", "The schema of the table."),
        OptionSpec("table_name", "The table; that of the same name if missing."),
        *(OptionSpec(name, _NO_EFFECT, is_idle=True) for name in IDLE_OF_TABLES),
    ),
)


def foreign_table(given: Mapping[str, str], name: str) -> External:
    """The table in the options, including those of its server. name: the name of the foreign table, which is the
    default of the table's name.

    CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED.
    """
    options = TABLE_OPTIONS.read({n.lower(): v for n, v in given.items()})
    url = options.text("url")
    if not url:
        refuse(
            'a server of wrapper SYS_JDBC needs the option "URL"', hint="Write URL 'jdbc:postgresql://host/database'."
        )
    found = jdbc_url(url, options.given("user_name"), options.given("password"))
    driver = options.text("driver_class")
    meant = next((system for begin, system in _DRIVERS.items() if (driver or "").startswith(begin)), None)
    if driver and meant != found.system:
        refuse(
            f"DRIVER_CLASS can't be {driver}" if meant is None else f"DRIVER_CLASS {driver} is not that of the URL",
            hint="No driver is needed: leave the option out.",
        )
    server = found.server
    is_postgres = found.system == "postgres"
    schema = options.text("schema_name") or (found.properties.get("currentSchema") or "public" if is_postgres else "")
    table = options.text("table_name") or name
    if schema not in ("", server.database) and not is_postgres:
        refuse(
            f'SCHEMA_NAME can\'t be "{schema}": a database of MySQL has no schemas',
            hint="Name the database in the URL, and leave SCHEMA_NAME out.",
        )
    address = f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"
    return External(
        "postgresql" if is_postgres else "mysql",
        f"{schema or server.database}.{table}",
        {
            "address": address,
            "user": server.user,
            "password": server.password,
            "database": server.database,
            **({"schema": schema} if is_postgres else {}),
            "table": table,
            "ssl_mode": server.ssl_mode,
        },
    )


def names_there(columns: Sequence[str], there: Sequence[str]) -> dict[str, str]:
    """The external names of columns that differ. Names are compared exactly, then without case.

    Raises UNDEFINED_COLUMN for a missing or ambiguous column.
    """
    found = {}
    for column in columns:
        near = [column] if column in there else [name for name in there if name.lower() == column.lower()]
        if len(near) != 1:
            raise error(
                "UNDEFINED_COLUMN",
                f'the table has no column "{column}"' if not near else f'column "{column}" may be {" or ".join(near)}',
                hint=did_you_mean(column, there),
            )
        if near[0] != column:
            found[column] = near[0]
    return found
