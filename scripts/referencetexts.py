"""Texts for the entries of docs/reference; `reference.py` finds the names of the entries in the code."""

# ruff: noqa: E501

from __future__ import annotations

from typing import Final

#: By the words after SHOW; the columns in their order. One column Name: a list of names.
SHOWN: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "jobs": (
        "The progress of each view, source and captured table.",
        (
            "relation",
            "kind of relation",
            "`running`, `filling`, `failed` or `paused`; of captured tables, a [state](../CAPTURE.md)",
            "rows of the content",
            "input rows read since creation",
            "changes output since creation",
            "rows kept for joins and aggregates",
            "bytes of these",
            "transactions that the view does not reflect yet",
            "age of the oldest of them",
            "failed expressions; of sources, dead letters and unreadable files",
            "reason of the state, or a problem of a running view",
            "time below which no rows can arrive",
            "input whose watermark is the lowest",
            "bytes that wait for a merge",
            "keys with the most rows, heaviest first",
            "number of the fill of a new view, for CANCEL JOBS",
            "part of its history that was read, from 0 to 1",
        ),
    ),
    "errors": (
        "All errors since creation.",
        (
            "relation; NULL: the database",
            "kind of error",
            "file or partition",
            "line or offset",
            "what happened, and the remedy if one exists",
        ),
    ),
    "dead letters": (
        "Unreadable records, with their text. FROM: of one source.",
        ("source or table", "file or partition", "line or offset", "why it can't be read", "first bytes of the record"),
    ),
    "late rows": (
        "Late rows of sources, tables, streams and views ([late_rows](../SEMANTICS.md#late-rows)). FROM: of one.",
        (
            "source, table, stream or view",
            "late rows since creation",
            "kept rows",
            "their bytes",
            "oldest",
            "newest",
            "second argument of `late_rows`",
            "input of the operator",
            "column below the watermark",
        ),
    ),
    "sources": (
        "Sources and captured databases ([states](../SOURCES.md#states)).",
        (
            "source",
            "`running`, `paused`, `waiting`, `blocked` or `stalled`",
            "why it is not `running`",
            "unread messages",
            "unread bytes of a captured server's log",
            "bytes that the server keeps for the capture",
        ),
    ),
    "sinks": (
        "Sinks and their delivery.",
        (
            "sink",
            "connector",
            "`append-only`, `upsert` or `debezium`",
            "`running` or another [state](../SINKS.md#states)",
            "newest delivered commit",
            "rows delivered since creation",
            "undelivered commits",
            "undelivered changes",
            "bytes of these",
            "age of the oldest of these",
            "why it is not `running`",
        ),
    ),
    "sequences": ("Sequences, also those of serial and identity columns.", ("sequence",)),
    "types": ("Enums.", ("type",)),
    "domains": ("Domains.", ("domain",)),
    "subscriptions": (
        "Subscriptions with stored history ([statements](../SUBSCRIPTIONS.md#risingwaves-subscriptions)).",
        (
            "subscription",
            "relation",
            "for how long changes are kept",
            "oldest readable commit",
            "its time",
            "changes kept",
            "bytes of these",
        ),
    ),
    "queries": (
        "Running queries, and subscriptions without a reader.",
        (
            "id for KILL QUERY",
            "start",
            "text",
            "`runs`, `waits` (no reader) or `lost`",
            "commits kept for an absent reader",
            "bytes of these",
        ),
    ),
    "commits": (
        "Commits, newest first; `FROM v` and `LIMIT n` select some ([the past](../SUBSCRIPTIONS.md#the-past)).",
        (
            "number, for AS OF",
            "time",
            "`epoch`, `transaction` or another kind",
            "changed relations",
            "inserted rows",
            "deleted rows",
            "views that the epoch [computed again](../OPERATIONS.md#large-changes)",
        ),
    ),
    "workers": (
        "Background threads of this process ([THREADS](../THREADS.md)).",
        (
            "kind",
            "sink, database, brokers, table or directory that it works for",
            "`starting`, `running`, or why not",
            "problem",
            "longest pause after its next failure, in seconds",
        ),
    ),
    "memory": (
        "Memory of the processes on this machine; Linux only.",
        (
            "`main`: this process; `workers`: of Python; `java`: of Spark; `segments`, `commits`: caches of `main`",
            "private bytes",
            "bytes of mapped files, which the system can drop",
        ),
    ),
    "parameters": ("Settings of the database.", ("setting", "value")),
    "cluster": ("The only node.", ("path of the database", "runtime", "state", "number of state buckets")),
    **dict.fromkeys(("cursors", "subscription cursors"), ("Declared cursors of the session.", ("cursor",))),
    "processlist": ("Running queries.", ("id, for KILL", "start", "text")),
    "users": (
        "[Roles](../SERVING.md#roles-and-grants).",
        ("role", "`true` if it can log in", "roles that contain it", "limit of its connections"),
    ),
    "all": ("[Session variables](../dialects/risingwave.md#session-variables).", ("variable", "value", "effect")),
    "connectors": (
        "Options of connectors, as in [CONNECTORS](../CONNECTORS.md); LIKE selects connectors.",
        ("connector", "use", "option", "type", "default", "`yes` if SHOW hides the value", "meaning"),
    ),
    "functions": (
        "[Functions of SQL](../dialects/risingwave.md#functions-of-sql).",
        ("function", "types of its parameters", "type of its result", "`sql`", "always NULL"),
    ),
    "roles": (
        "[Roles](../SERVING.md#roles-and-grants).",
        ("role", "`true` if it can log in", "roles that contain it", "limit of its connections"),
    ),
    "grants": ("[Grants](../SERVING.md#roles-and-grants).", ("role", "relation", "privileges")),
    "topics": (
        "Topics; SHOW TABLES in Lenses' dialect has the same columns.",
        ("topic", "format of keys", "format of values", "partitions", "processor that writes it"),
    ),
    "processors": (
        "Lenses' processors.",
        ("processor", "`running`, `filling`, `failed`, or why its topic is not written", "text"),
    ),
    "pumps": ("SQLstream's pumps.", ("pump", "`STARTED` or `STOPPED`", "stream that it writes")),
    "indexes": ("Indexes.", ("index", "relation", "columns")),
    "connections": ("[Connections](../SECRETS.md).", ("connection", "`kafka`, `schema_registry` or `iceberg`")),
    "relations": ("All relations.", ("relation", "kind")),
    "columns": (
        "`SHOW COLUMNS FROM r`; DESCRIBE has the same columns, and rows for keys, indexes and watermarks.",
        ("column or property", "type, or the property's value", "whether it is part of the primary key"),
    ),
    "create": ("`SHOW CREATE TABLE t` and so on: the statement that creates it.", ("relation", "statement")),
}

#: Lists of names.
LISTED: Final = {
    "tables": "tables; with streams, topics and dictionaries where the dialect calls them tables",
    "streams": "streams and sources of SQLstream and Timeplus", "dictionaries": "Timeplus' dictionaries",
    "views": "views", "materialized views": "materialized views", "servers": "SQLstream's servers",
    "format schemas": "Timeplus' format schemas", "named collections": "Timeplus' named collections",
    "databases": "the database; in Timeplus its schemas", "schemas": "schemas", "secrets": "secrets, without values",
    "internal tables": "always empty: state is not in tables",
}  # fmt: skip

#: Environment variables that are no options of commands: default and meaning.
ENVIRONMENT: Final = {
    "WATERSMEET_MASTER": ("`local[…]`", "Spark's master, such as `spark://host:7077`"),
    "WATERSMEET_CONNECTORS": (
        "–", "modules with [connectors of other packages](../SOURCES.md#connectors-of-other-packages), separated by commas",
    ),
    "WATERSMEET_WORKER_BYTES": (
        "half of the container's memory, divided by the workers", "[memory of a worker](../MONITORING.md#memory-of-workers)",
    ),
    "WATERSMEET_FUNCTION_SECONDS": ("30", "how long a [function in Python](../FUNCTIONS.md) may take for a batch of rows"),
    "WATERSMEET_MERGE_BYTES": ("268435456", "state that each bucket of a stage merges in an epoch"),
    "WATERSMEET_CACHE_DIR": ("a temporary directory", "local copies of objects ([cache](../OBJECT-STORES.md))"),
    "WATERSMEET_CACHE_BYTES": ("10737418240", "limit of these copies"),
    "WATERSMEET_READING_SECONDS": ("600", "how long an object store keeps files for readers"),
    "WATERSMEET_STORE_PATIENCE_SECONDS": ("60", "how long failing requests to a store are retried; 0: never"),
}  # fmt: skip

#: Variables of other programs and libraries.
OTHERS: Final = {
    "`JAVA_HOME`, `SPARK_HOME`, `PYSPARK_PYTHON`": "Java, Spark and the Python of its workers",
    "`SPARK_LOCAL_DIRS`": "directories of temporary files of Spark",
    "`AWS_…`, `AZURE_…`, `GOOGLE_…`": "[access to object stores](../OBJECT-STORES.md#access)",
    "`OTEL_…`": "where [traces](../MONITORING.md#logs-and-traces) are sent",
    "`FORCE_COLOR`, `NO_COLOR`": "colors of the command line",
}

_FUNCTIONS: Final = "../FUNCTIONS.md"
_RW, _TP, _SS, _LS = (
    "../dialects/risingwave.md", "../dialects/timeplus.md", "../dialects/sqlstream.md", "../dialects/lenses.md",
)  # fmt: skip

#: The page with SQLstream's supported statements.
_WHAT_RUNS_SS: Final = "dialects/sqlstream.md#statements"
_WHAT_RUNS_RW: Final = "dialects/risingwave.md#statements"

#: By their first words: meaning and page.
STATEMENTS: Final = {
    "SELECT": ("read at one moment; in Timeplus and SQLstream also a query that runs", "../SEMANTICS.md#what-a-reader-sees"),
    "VALUES": ("rows of expressions", _RW), "WITH": ("a query with named subqueries", _RW),
    "INSERT": ("insert rows; in Lenses also: create a processor", "../SEMANTICS.md#relations"),
    "UPDATE": ("change rows of a table", "../SEMANTICS.md#relations"),
    "DELETE": ("delete rows of a table", "../SEMANTICS.md#relations"),
    "MERGE": ("change, insert and delete rows; in SQLstream: write a foreign table by key", f"{_SS}#foreign-tables"),
    "TRUNCATE": ("delete all rows", "../CLIENTS.md#same-as-postgresql"),
    "COPY": ("write or read a file", f"{_RW}#copy"),
    "CREATE TABLE": ("a table, or a topic in Lenses", "../SEMANTICS.md#relations"),
    "CREATE STREAM": ("a stream", "../SEMANTICS.md#relations"),
    "CREATE MUTABLE STREAM": ("a stream with a primary key", _TP),
    "CREATE SOURCE": ("rows of a connector", "../SOURCES.md"),
    "CREATE SINK": ("delivery to another system", "../SINKS.md"),
    "CREATE VIEW": ("a named query", "../SEMANTICS.md#relations"),
    "CREATE MATERIALIZED VIEW": ("a query whose result is kept", "../SEMANTICS.md#relations"),
    "CREATE INDEX": ("a copy of a relation, found by other columns", _RW), "CREATE UNIQUE INDEX": ("an index that is a key", f"{_RW}#constraints"),
    "CREATE PUMP": ("a query that writes a stream", _SS),
    "CREATE SCHEMA": ("a namespace of relations", _RW), "CREATE DATABASE": ("a schema, or tables of a lake's catalog", _TP),
    "CREATE SECRET": ("a named password", "../SECRETS.md#secrets"),
    "CREATE CONNECTION": ("named options", _RW), "CREATE FUNCTION": ("a function in SQL, Python or JavaScript", _FUNCTIONS),
    "CREATE AGGREGATE": ("an aggregate in Python or JavaScript", f"{_FUNCTIONS}#aggregates"),
    "DROP AGGREGATE": ("delete an aggregate", _FUNCTIONS),
    "CREATE AGGREGATE FUNCTION": ("an aggregate in Python or JavaScript", f"{_FUNCTIONS}#aggregates"),
    "CREATE REMOTE FUNCTION": ("refused with the way round", f"{_FUNCTIONS}#not-supported"),
    **dict.fromkeys(
        ("GRANT USAGE ON LANGUAGE", "REVOKE USAGE ON LANGUAGE"),
        ("the right to create functions in a language", f"{_FUNCTIONS}#rights"),
    ),
    "CREATE SEQUENCE": ("numbers, each returned once", _RW),
    **dict.fromkeys(("CREATE CAST", "DROP CAST"), ("accepted with a notice for an enum and varchar", f"{_RW}#enums")),
    "CREATE TYPE": ("an enum", _RW), "CREATE DOMAIN": ("a type with rules", f"{_RW}#domains"),
    "CREATE SUBSCRIPTION": ("stored history", "../SUBSCRIPTIONS.md#risingwaves-subscriptions"),
    "CREATE DICTIONARY": ("a look-up table with a source", f"{_TP}#outside-of-the-database"),
    "CREATE EXTERNAL TABLE": ("a table of another system", f"{_TP}#outside-of-the-database"),
    "CREATE RANDOM STREAM": ("a stream of random rows", _TP),
    "CREATE EXTERNAL STREAM": ("a topic or file", f"{_TP}#outside-of-the-database"),
    "CREATE FORMAT SCHEMA": ("a schema of messages", f"{_TP}#outside-of-the-database"),
    "CREATE NAMED COLLECTION": ("named options", f"{_TP}#outside-of-the-database"),
    "CREATE SERVER": ("options of foreign tables and streams", f"{_SS}#foreign-tables"),
    "CREATE FOREIGN TABLE": ("a table of another system", f"{_SS}#foreign-tables"),
    "CREATE FOREIGN STREAM": ("a topic or files", f"{_SS}#foreign-streams"),
    "CREATE FOREIGN DATA WRAPPER": ("accepted with a notice", _WHAT_RUNS_SS),
    **dict.fromkeys(("ANALYZE", "CHECKPOINT"), ("accepted with a notice", _WHAT_RUNS_SS)),
    **dict.fromkeys(("OPTIMIZE", "SYSTEM"), ("accepted with a notice", _TP)),
    "EXISTS": ("whether there is a relation or database", _TP),
    **dict.fromkeys(("CALL", "IMPORT"), ("refused with the way round", _WHAT_RUNS_SS)),
    **dict.fromkeys(("CANCEL", "VACUUM"), ("accepted with a notice", _WHAT_RUNS_RW)),
    "BACKUP": ("refused with the way round", _WHAT_RUNS_RW),
    "REASSIGN": ("refused with the way round", _WHAT_RUNS_RW),
    "CREATE ROLE": ("a role; also USER, GROUP", "../SERVING.md#roles-and-grants"),
    "ALTER": ("change or rename a relation", "../SEMANTICS.md#replacing-and-altering"),
    "ALTER DATABASE": ("number of buckets", "../OPERATIONS.md#parallelism"),
    "CREATE FORK": ("a second database that shares all files", "../FORKS.md"),
    "DROP FORK": ("delete a fork", "../FORKS.md"),
    "REPLAY": ("in a fork: read what its database has read since", "../FORKS.md"),
    "DIFF": ("the rows that only a fork or only its database has", "../FORKS.md"),
    "SHOW DIFF": ("which views a fork and its database have alike", "../FORKS.md"),
    "PROMOTE": ("make a database its fork", "../FORKS.md"),
    "SHOW FORKS": ("forks and their paths", "../FORKS.md"),
    "ALTER SYSTEM": ("retention of history and of late rows; clock; verify_rate, verify_key", "../OPERATIONS.md#damage-and-clocks"),
    "VERIFY": ("computes views again and compares", "../OPERATIONS.md#proofs"),
    "SHOW VERIFICATIONS": ("results of VERIFY", "../OPERATIONS.md#proofs"),
    "ALTER DEFAULT PRIVILEGES": ("accepted with a notice", "../SERVING.md#roles-and-grants"),
    "ALTER SECRET": ("another value of a secret", "../SECRETS.md#secrets"),
    "COMMENT ON": ("a text about a relation or column", "../SEMANTICS.md#replacing-and-altering"),
    "ALTER SEQUENCE": ("restart or change a sequence", _RW),
    "ALTER TYPE": ("another label of an enum", _RW), "ALTER DOMAIN": ("other rules of a domain", f"{_RW}#domains"),
    "ALTER SUBSCRIPTION": ("retention of a subscription", "../SUBSCRIPTIONS.md#risingwaves-subscriptions"),
    "ALTER ROLE": ("password, limits; also USER, GROUP", "../SERVING.md#roles-and-grants"),
    "RENAME": ("rename a stream", _TP), "RESET SOURCE": ("start a capture again", "../CAPTURE.md"),
    "REFRESH": ("compute a stopped view again", "../OPERATIONS.md#stopped-views"),
    "START": ("begin a transaction; in Lenses also: resume a processor", "../SEMANTICS.md#transactions"),
    "STOP": ("stop a processor", _LS), "RECOVER": ("resume a view", _TP), "UNSUBSCRIBE": ("stop a view", _TP),
    "DROP": ("delete an object", "../SEMANTICS.md#replacing-and-altering"),
    "DROP SECRET": ("delete a secret", "../SECRETS.md#secrets"), "DROP FUNCTION": ("delete a function", _FUNCTIONS),
    "DROP ROLE": ("delete a role; also USER, GROUP", "../SERVING.md#roles-and-grants"),
    "GRANT": ("give a right", "../SERVING.md#roles-and-grants"),
    "REVOKE": ("take a right back", "../SERVING.md#roles-and-grants"),
    "BEGIN": ("begin a transaction", "../SEMANTICS.md#transactions"),
    "COMMIT": ("end a transaction; also END", "../SEMANTICS.md#transactions"),
    "ROLLBACK": ("undo a transaction; also ABORT", "../SEMANTICS.md#transactions"),
    "SAVEPOINT": ("a point to roll back to", "../CLIENTS.md#same-as-postgresql"),
    "RELEASE": ("forget a savepoint", "../CLIENTS.md#same-as-postgresql"),
    "FLUSH": ("wait until all views reflect all input", "../SEMANTICS.md#what-a-reader-sees"),
    "WAIT": ("as FLUSH", "../SEMANTICS.md#what-a-reader-sees"),
    "SUBSCRIBE": ("the content of a relation, then its changes", "../SUBSCRIPTIONS.md#in-sql"),
    "DECLARE": ("open a cursor", "../SUBSCRIPTIONS.md"), "FETCH": ("read from a cursor", "../SUBSCRIPTIONS.md"),
    "MOVE": ("skip rows of a cursor", "../CLIENTS.md#same-as-postgresql"),
    "CLOSE": ("close a cursor", "../CLIENTS.md#same-as-postgresql"),
    "PREPARE": ("name a statement", "../CLIENTS.md#same-as-postgresql"),
    "EXECUTE": ("run a prepared statement", "../CLIENTS.md#same-as-postgresql"),
    "DEALLOCATE": ("forget a prepared statement", "../CLIENTS.md#same-as-postgresql"),
    "DO": ("run a block of statements", "../dialects/risingwave.md#statements"),
    "DISCARD": ("reset the session", "../CLIENTS.md#same-as-postgresql"),
    **dict.fromkeys(("CREATE TEMP", "CREATE TEMPORARY", "CREATE LOCAL TEMP", "CREATE LOCAL TEMPORARY"), ("a table or view of the session", "../CLIENTS.md#same-as-postgresql")),
    "LISTEN": ("receive notifications, or the changes of a relation", "../CLIENTS.md#different-from-postgresql"),
    "UNLISTEN": ("receive no more notifications", "../CLIENTS.md#same-as-postgresql"),
    "NOTIFY": ("send a notification", "../CLIENTS.md#same-as-postgresql"),
    "LOCK": ("fail at COMMIT if others change tables", "../CLIENTS.md#pg_dump"),
    "SET": ("a session variable", f"{_RW}#session-variables"), "RESET": ("a session variable to its default", f"{_RW}#session-variables"),
    "SET ROLE": ("act as a role; also SET SESSION, SET LOCAL", "../SERVING.md#roles-and-grants"),
    "RESET ROLE": ("act as the user again", "../SERVING.md#roles-and-grants"),
    "USE": ("the current schema", _TP), "KILL": ("end a running query", "../OPERATIONS.md"),
    "SHOW": ("lists and states", "show.md"), "SHOW COMMITS": ("numbers and times of commits", "../SUBSCRIPTIONS.md#the-past"),
    "DESCRIBE": ("columns and keys; also DESC", "show.md"), "EXPLAIN": ("the plan", f"{_RW}#explain"),
    "EXPLAIN ANALYZE": ("what operators did", f"{_RW}#explain-analyze"),
    "EXPLAIN ROW": ("origins of a row, also MISSING ROW", "../LINEAGE.md"),
}  # fmt: skip

#: Other words of a statement of the table.
SYNONYMS: Final = {
    "END": "COMMIT", "ABORT": "ROLLBACK", "DESC": "DESCRIBE", "SET SESSION ROLE": "SET ROLE",
    "SET LOCAL ROLE": "SET ROLE",
    **{f"{verb} {word}": f"{verb} ROLE" for verb in ("CREATE", "ALTER", "DROP") for word in ("USER", "GROUP")},
}  # fmt: skip

#: By page of docs/reference/connectors: title, connectors, and where their behavior is described.
CONNECTORS: Final = {
    "files": ("Files", ("file", "posix_fs", "fs"), "[sources](../../FILES.md)"),
    "s3": ("Amazon S3", ("s3", "s3_v2"), "[sources](../../FILES.md#objects), [sinks](../../SINKS.md#objects)"),
    "gcs": ("Google Cloud Storage", ("gcs",), "[sources](../../FILES.md#objects), [sinks](../../SINKS.md#objects)"),
    "azblob": ("Azure Blob Storage", ("azblob",), "[sources](../../FILES.md#objects), [sinks](../../SINKS.md#objects)"),
    "kafka": ("Kafka", ("kafka",), "[sources](../../SOURCES.md), [sinks](../../SINKS.md#kafka)"),
    "postgresql": (
        "PostgreSQL", ("postgres", "postgresql", "postgres-cdc"),
        "[capture](../../CAPTURE.md#postgresql), [sinks](../../SINKS.md#postgresql)",
    ),
    "mysql": (
        "MySQL and MariaDB", ("mysql", "mysql-cdc"),
        "[capture](../../CAPTURE.md#mariadb), [sinks](../../SINKS.md#mysql-and-mariadb)",
    ),
    "jdbc": (
        "JDBC", ("jdbc", "SYS_JDBC"),
        "[sinks](../../SINKS.md#postgresql), [foreign tables](../../dialects/sqlstream.md#foreign-tables)",
    ),
    "clickhouse": ("ClickHouse", ("clickhouse",), "[sinks](../../SINKS.md#clickhouse)"),
    "redis": ("Redis", ("redis",), "[sinks](../../SINKS.md#redis)"),
    "nats": ("NATS JetStream", ("nats",), "[sources](../../SOURCES.md#nats-jetstream-and-kinesis), [sinks](../../SINKS.md#nats-jetstream)"),
    "mqtt": ("MQTT", ("mqtt",), "[sources](../../SOURCES.md#mqtt), [sinks](../../SINKS.md#mqtt)"),
    "kinesis": ("Kinesis", ("kinesis",), "[sources](../../SOURCES.md#nats-jetstream-and-kinesis), [sinks](../../SINKS.md#kinesis)"),
    "delta": ("Delta Lake", ("delta", "deltalake"), "[sources](../../LAKE-TABLES.md), [sinks](../../SINKS.md#delta-lake)"),
    "iceberg": ("Iceberg", ("iceberg",), "[sources](../../LAKE-TABLES.md), [sinks](../../SINKS.md#iceberg)"),
    "http": (
        "HTTP", ("http", "webhook"),
        "[dictionaries](../../dialects/timeplus.md#outside-of-the-database), [webhooks](../../SOURCES.md#webhooks)",
    ),
    "datagen": ("Generated rows", ("datagen",), "[sources](../../dialects/risingwave.md#connector-datagen)"),
}  # fmt: skip

#: Drivers of PostgreSQL that tests use: their modules by package.
DRIVERS: Final = {
    "adbc-driver-postgresql": "adbc_driver_postgresql",
    "asyncpg": "asyncpg",
    "psycopg": "psycopg",
    "sqlalchemy": "sqlalchemy",
}
