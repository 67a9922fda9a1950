import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.Array;
import java.sql.BatchUpdateException;
import java.sql.CallableStatement;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import org.postgresql.PGConnection;
import org.postgresql.PGStatement;
import org.postgresql.util.PGobject;

/** Asks questions of PostgreSQL's driver for Java, and prints a line for each: its name, a tab, and the answer. */
public class Updating {
    private static final int SCROLLS = ResultSet.TYPE_SCROLL_INSENSITIVE;
    private static final int UPDATES = ResultSet.CONCUR_UPDATABLE;
    private static String url;
    private static String user;
    private static String password;
    private static Connection connection;

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        user = arguments[1];
        password = arguments[2];
        try (Connection opened = opened(false)) {
            connection = opened;
            tables();
            updatableResults();
            batches();
            descriptions();
            values();
            statements();
        }
    }

    private static Connection opened(boolean rewrites) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", user);
        properties.setProperty("password", password);
        properties.setProperty("reWriteBatchedInserts", String.valueOf(rewrites));
        return DriverManager.getConnection(url, properties);
    }

    private static void check(String name, Callable<?> question) throws SQLException {
        String answer;
        try {
            answer = String.valueOf(question.call());
        } catch (SQLException failure) {
            answer = "failed " + failure.getSQLState() + " " + String.valueOf(failure.getMessage()).lines().findFirst();
            if (!connection.getAutoCommit()) {
                connection.rollback();
                connection.setAutoCommit(true);
            }
        } catch (Exception failure) {
            answer = "ERROR " + failure;
        }
        System.out.println(name + "\t" + answer.replace("\n", "\\n"));
    }

    private static int run(String... statements) throws SQLException {
        int count = 0;
        try (Statement statement = connection.createStatement()) {
            for (String sql : statements) {
                count = statement.executeUpdate(sql);
            }
        }
        return count;
    }

    private static List<List<String>> rows(String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return rows(statement.executeQuery(sql));
        }
    }

    private static List<List<String>> rows(ResultSet rows, String... columns) throws SQLException {
        List<List<String>> found = new ArrayList<>();
        while (rows.next()) {
            List<String> row = new ArrayList<>();
            for (String column : columns) {
                row.add(rows.getString(column));
            }
            for (int i = 1; columns.length == 0 && i <= rows.getMetaData().getColumnCount(); i++) {
                row.add(rows.getString(i));
            }
            found.add(row);
        }
        return found;
    }

    private static void tables() throws SQLException {
        run("CREATE TABLE item (id int PRIMARY KEY, name varchar(20) NOT NULL, price numeric(10, 2), at timestamptz, "
                + "day date, data bytea, tags text[], is_new boolean, code uuid, notes jsonb, rate float8, big bigint)",
            "CREATE TABLE place (region varchar(8), number int, label text, PRIMARY KEY (region, number))",
            "CREATE TABLE entry (id serial PRIMARY KEY, text varchar(20) DEFAULT 'none', made timestamptz DEFAULT now())",
            "CREATE TABLE ticket (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, seat varchar(8) UNIQUE)",
            "CREATE TABLE unique_only (a int NOT NULL UNIQUE, b text)",
            "CREATE TABLE no_key (a int, b text)",
            "CREATE SCHEMA other",
            "CREATE TABLE other.\"Mixed\" (\"Id\" int PRIMARY KEY, \"The Name\" text)",
            "CREATE TABLE child (id int PRIMARY KEY, item_id int REFERENCES item ON DELETE CASCADE)",
            "CREATE VIEW cheap AS SELECT id, name FROM item WHERE price < 5",
            "CREATE INDEX item_by_name ON item (name, price)",
            "COMMENT ON TABLE item IS 'what is sold'", "COMMENT ON COLUMN item.name IS 'as shown'",
            "INSERT INTO item (id, name, price, at, day) SELECT n, 'item ' || n, n * 1.5, '2024-01-01 00:00:00+00', "
                + "'2024-02-29' FROM generate_series(1, 10) AS g (n)",
            "INSERT INTO place VALUES ('north', 1, 'a'), ('north', 2, 'b'), ('south', 1, 'c')",
            "INSERT INTO unique_only VALUES (1, 'x'), (2, 'y')", "INSERT INTO no_key VALUES (1, 'x')",
            "INSERT INTO other.\"Mixed\" VALUES (1, 'one')", "INSERT INTO child VALUES (1, 1)");
    }

    private interface Change {
        Object apply(ResultSet rows) throws Exception;
    }

    private static Object changed(String sql, Change change) throws Exception {
        try (Statement statement = connection.createStatement(SCROLLS, UPDATES);
                ResultSet rows = statement.executeQuery(sql)) {
            return change.apply(rows);
        }
    }

    private static void updatableResults() throws SQLException {
        check("row_updated", () -> List.of(changed("SELECT id, name, price FROM item WHERE id <= 2 ORDER BY id", rows -> {
            rows.next();
            rows.updateString("name", "changed");
            rows.updateBigDecimal("price", new BigDecimal("9.99"));
            rows.updateRow();
            return List.of(rows.getConcurrency() == UPDATES, rows.getString("name"), rows.getBigDecimal("price"));
        }), rows("SELECT id, name, price FROM item WHERE id <= 2 ORDER BY id")));
        check("row_inserted", () -> List.of(changed("SELECT * FROM item WHERE id < 0", rows -> {
            rows.moveToInsertRow();
            rows.updateInt("id", 11);
            rows.updateString("name", "new");
            rows.updateTimestamp("at", Timestamp.from(java.time.Instant.parse("2024-05-06T07:08:09.123456Z")));
            rows.updateObject("day", LocalDate.of(2024, 5, 6));
            rows.updateBytes("data", new byte[] {0, 1, -1});
            rows.updateBoolean("is_new", true);
            rows.updateObject("code", UUID.fromString("00000000-0000-4000-8000-00000000000b"));
            rows.updateDouble("rate", 0.1);
            rows.updateLong("big", 1L << 40);
            rows.updateArray("tags", connection.createArrayOf("text", new String[] {"a", null, "b\"c"}));
            rows.insertRow();
            rows.moveToCurrentRow();
            rows.last();
            return List.of(rows.getRow(), rows.getString("name"), rows.getDouble("rate"));
        }), rows("SELECT * FROM item WHERE id = 11")));
        check("row_deleted", () -> List.of(changed("SELECT id, name FROM item ORDER BY id", rows -> {
            rows.last();
            int before = rows.getRow();
            rows.deleteRow();
            rows.last();
            return List.of(before, rows.getRow());
        }), rows("SELECT count(*), max(id) FROM item")));
        check("columns_set_to_null", () -> List.of(changed("SELECT id, price, day FROM item WHERE id = 3", rows -> {
            rows.next();
            rows.updateNull("price");
            rows.updateNull("day");
            rows.updateRow();
            return rows.getBigDecimal("price") == null;
        }), rows("SELECT price, day FROM item WHERE id = 3")));
        check("updates_cancelled", () -> changed("SELECT id, name FROM item WHERE id = 4", rows -> {
            rows.next();
            rows.updateString("name", "never");
            rows.cancelRowUpdates();
            return rows.getString("name");
        }));
        check("row_refreshed", () -> changed("SELECT id, name FROM item WHERE id = 5", rows -> {
            rows.next();
            run("UPDATE item SET name = 'from outside' WHERE id = 5");
            String before = rows.getString("name");
            rows.refreshRow();
            return List.of(before, rows.getString("name"));
        }));
        check("key_updated", () -> List.of(changed("SELECT id, name FROM item WHERE id = 6", rows -> {
            rows.next();
            rows.updateInt("id", 60);
            rows.updateRow();
            return rows.getInt("id");
        }), rows("SELECT id FROM item WHERE id IN (6, 60)")));
        check("every_row_updated", () -> List.of(changed("SELECT region, number, label FROM place", rows -> {
            int count = 0;
            while (rows.next()) {
                rows.updateString("label", rows.getString("label") + "!");
                rows.updateRow();
                count++;
            }
            return count;
        }), rows("SELECT * FROM place ORDER BY region, number")));
        check("in_a_transaction", () -> {
            connection.setAutoCommit(false);
            Object inside = changed("SELECT id, name FROM item WHERE id = 7", rows -> {
                rows.next();
                rows.updateString("name", "rolled back");
                rows.updateRow();
                rows.moveToInsertRow();
                rows.updateInt("id", 70);
                rows.updateString("name", "rolled back");
                rows.insertRow();
                return rows("SELECT id, name FROM item WHERE id IN (7, 70) ORDER BY id");
            });
            connection.rollback();
            connection.setAutoCommit(true);
            return List.of(inside, rows("SELECT id, name FROM item WHERE id IN (7, 70)"));
        });
        check("generated_values_of_inserted_row", () -> List.of(changed("SELECT id, text FROM entry", rows -> {
            rows.moveToInsertRow();
            rows.updateString("text", "one");
            rows.insertRow();
            return rows.getInt("id");
        }), rows("SELECT id, text, made IS NOT NULL FROM entry")));
        check("identity_of_inserted_row", () -> List.of(changed("SELECT id, seat FROM ticket", rows -> {
            rows.moveToInsertRow();
            rows.updateString("seat", "4a");
            rows.insertRow();
            return rows.getLong("id");
        }), rows("SELECT * FROM ticket")));
        check("by_a_unique_column", () -> List.of(changed("SELECT a, b FROM unique_only WHERE a = 2", rows -> {
            rows.next();
            rows.updateString("b", "z");
            rows.updateRow();
            return rows.getString("b");
        }), rows("SELECT * FROM unique_only ORDER BY a")));
        check("quoted_names_in_a_schema", () -> List.of(
            changed("SELECT \"Id\", \"The Name\" FROM other.\"Mixed\"", rows -> {
                rows.next();
                rows.updateString("The Name", "two");
                rows.updateRow();
                rows.moveToInsertRow();
                rows.updateInt("Id", 2);
                rows.insertRow();
                return rows.getConcurrency() == UPDATES;
            }), rows("SELECT * FROM other.\"Mixed\" ORDER BY 1")));
        check("columns_with_aliases", () -> List.of(changed("SELECT id AS i, name AS n FROM item WHERE id = 8", rows -> {
            rows.next();
            rows.updateString("n", "by alias");
            rows.updateRow();
            return rows.getString("n");
        }), rows("SELECT name FROM item WHERE id = 8")));
        for (String sql : List.of("SELECT a, b FROM no_key", "SELECT id, name FROM cheap",
                "SELECT i.id, i.name FROM item i JOIN child c ON c.item_id = i.id", "SELECT name FROM item")) {
            check("not_updatable: " + sql, () -> changed(sql, rows -> {
                rows.next();
                rows.updateString(rows.getMetaData().getColumnCount(), "x");
                rows.updateRow();
                return rows.getConcurrency();
            }));
        }
        check("violations", () -> {
            List<String> found = new ArrayList<>();
            for (int id : new int[] {1, 99}) {
                try {
                    changed("SELECT id, name FROM item WHERE id = 2", rows -> {
                        rows.moveToInsertRow();
                        rows.updateInt("id", id);
                        if (id == 1) {
                            rows.updateString("name", "double");
                        }
                        rows.insertRow();
                        return null;
                    });
                } catch (SQLException failure) {
                    found.add(failure.getSQLState());
                }
            }
            return found;
        });
        check("with_a_prepared_query", () -> {
            try (PreparedStatement query = connection.prepareStatement(
                    "SELECT id, name FROM item WHERE id = ?", SCROLLS, UPDATES)) {
                List<Object> found = new ArrayList<>();
                for (int round = 0; round < 8; round++) {
                    query.setInt(1, 9);
                    try (ResultSet rows = query.executeQuery()) {
                        rows.next();
                        found.add(rows.getString("name"));
                        rows.updateString("name", "round " + round);
                        rows.updateRow();
                    }
                }
                return found;
            }
        });
        check("moved_around", () -> changed("SELECT id FROM item WHERE id < 6 ORDER BY id", rows -> {
            List<Object> found = new ArrayList<>();
            rows.absolute(3);
            found.add(rows.getInt(1));
            rows.relative(-2);
            found.add(rows.getInt(1));
            rows.absolute(-1);
            found.add(rows.getInt(1));
            rows.previous();
            found.add(rows.getInt(1));
            rows.afterLast();
            found.add(rows.isAfterLast());
            rows.beforeFirst();
            found.add(rows.isBeforeFirst());
            return found;
        }));
    }

    private static void batches() throws SQLException {
        for (boolean rewrites : new boolean[] {false, true}) {
            String ending = rewrites ? "_rewritten" : "";
            check("batch_of_1000" + ending, () -> {
                try (Connection own = opened(rewrites)) {
                    own.createStatement().execute("DROP TABLE IF EXISTS many");
                    own.createStatement().execute("CREATE TABLE many (id int PRIMARY KEY, name varchar(20), x numeric(10, 1))");
                    own.setAutoCommit(false);
                    int[] counts;
                    try (PreparedStatement insert = own.prepareStatement("INSERT INTO many VALUES (?, ?, ?)")) {
                        for (int i = 0; i < 1_000; i++) {
                            insert.setInt(1, i);
                            insert.setString(2, "name " + i);
                            insert.setBigDecimal(3, new BigDecimal(i).movePointLeft(1));
                            insert.addBatch();
                        }
                        counts = insert.executeBatch();
                    }
                    own.commit();
                    return List.of(counts.length, Arrays.stream(counts).distinct().boxed().toList(),
                        rows("SELECT count(*), sum(id), sum(x), max(name) FROM many"));
                }
            });
            check("failed_batch" + ending, () -> {
                try (Connection own = opened(rewrites)) {
                    own.setAutoCommit(false);
                    try (PreparedStatement insert = own.prepareStatement("INSERT INTO many VALUES (?, ?, ?)")) {
                        for (int id : new int[] {2_000, 2_001, 5, 2_002}) {
                            insert.setInt(1, id);
                            insert.setString(2, "x");
                            insert.setNull(3, Types.NUMERIC);
                            insert.addBatch();
                        }
                        insert.executeBatch();
                        return "no failure";
                    } catch (BatchUpdateException failure) {
                        own.rollback();
                        return List.of(failure.getSQLState(), failure.getUpdateCounts().length,
                            rows("SELECT count(*) FROM many"));
                    }
                }
            });
            check("keys_of_a_batch" + ending, () -> {
                try (Connection own = opened(rewrites);
                        PreparedStatement insert = own.prepareStatement(
                            "INSERT INTO ticket (seat) VALUES (?)", new String[] {"id"})) {
                    for (int i = 0; i < 5; i++) {
                        insert.setString(1, "b" + i + ending.length());
                        insert.addBatch();
                    }
                    int count = insert.executeBatch().length;
                    return List.of(count, rows(insert.getGeneratedKeys()));
                }
            });
            check("changes_in_a_batch" + ending, () -> {
                try (Connection own = opened(rewrites);
                        PreparedStatement update = own.prepareStatement("UPDATE many SET name = ? WHERE id = ?")) {
                    own.setAutoCommit(false);
                    for (int i = 0; i < 100; i++) {
                        update.setString(1, "changed");
                        update.setInt(2, i * 20);
                        update.addBatch();
                    }
                    int updated = Arrays.stream(update.executeBatch()).sum();
                    try (PreparedStatement delete = own.prepareStatement("DELETE FROM many WHERE id = ?")) {
                        for (int i = 0; i < 100; i++) {
                            delete.setInt(1, i);
                            delete.addBatch();
                        }
                        int deleted = Arrays.stream(delete.executeBatch()).sum();
                        own.commit();
                        return List.of(updated, deleted,
                            rows("SELECT count(*), count(*) FILTER (WHERE name = 'changed') FROM many"));
                    }
                }
            });
        }
        check("batch_of_different_statements", () -> {
            try (Statement statement = connection.createStatement()) {
                statement.addBatch("INSERT INTO no_key VALUES (2, 'y')");
                statement.addBatch("UPDATE no_key SET b = 'z'");
                statement.addBatch("DELETE FROM no_key WHERE a = 1");
                return List.of(Arrays.toString(statement.executeBatch()), rows("SELECT * FROM no_key"));
            }
        });
    }

    private static void descriptions() throws SQLException {
        DatabaseMetaData meta = connection.getMetaData();
        check("described_columns", () -> {
            try (Statement statement = connection.createStatement()) {
                ResultSetMetaData found = statement.executeQuery(
                    "SELECT i.*, t.id AS number, price * 2 AS twice FROM item i, ticket t").getMetaData();
                List<Object> columns = new ArrayList<>();
                for (int i = 1; i <= found.getColumnCount(); i++) {
                    columns.add(List.of(found.getColumnName(i), found.getColumnLabel(i), found.getTableName(i),
                        found.getSchemaName(i), found.getColumnTypeName(i), found.getColumnType(i),
                        found.getPrecision(i), found.getScale(i), found.getColumnDisplaySize(i), found.isNullable(i),
                        found.isAutoIncrement(i), found.isSigned(i), found.getColumnClassName(i)));
                }
                return columns;
            }
        });
        check("described_parameters", () -> {
            try (PreparedStatement statement = connection.prepareStatement(
                    "INSERT INTO item (id, name, price, at, tags, code) VALUES (?, ?, ?, ?, ?, ?)")) {
                List<Object> found = new ArrayList<>();
                for (int i = 1; i <= statement.getParameterMetaData().getParameterCount(); i++) {
                    found.add(statement.getParameterMetaData().getParameterTypeName(i));
                }
                return found;
            }
        });
        check("primary_keys", () -> List.of(
            rows(meta.getPrimaryKeys(null, null, "place"), "TABLE_NAME", "COLUMN_NAME", "KEY_SEQ", "PK_NAME"),
            rows(meta.getPrimaryKeys(null, "other", "Mixed"), "COLUMN_NAME", "KEY_SEQ")));
        check("row_identifier", () -> rows(meta.getBestRowIdentifier(
            null, null, "place", DatabaseMetaData.bestRowSession, false), "COLUMN_NAME", "TYPE_NAME"));
        check("foreign_keys", () -> List.of(
            rows(meta.getImportedKeys(null, null, "child"), "PKTABLE_NAME", "PKCOLUMN_NAME", "FKCOLUMN_NAME", "KEY_SEQ",
                "UPDATE_RULE", "DELETE_RULE", "FK_NAME", "PK_NAME", "DEFERRABILITY"),
            rows(meta.getExportedKeys(null, null, "item"), "FKTABLE_NAME", "FKCOLUMN_NAME")));
        check("indexes", () -> rows(meta.getIndexInfo(null, "public", "item", false, true),
            "NON_UNIQUE", "INDEX_NAME", "TYPE", "ORDINAL_POSITION", "COLUMN_NAME", "ASC_OR_DESC"));
        check("columns", () -> rows(meta.getColumns(null, "public", "item", "%"), "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME",
            "COLUMN_SIZE", "DECIMAL_DIGITS", "NULLABLE", "REMARKS", "COLUMN_DEF", "ORDINAL_POSITION", "IS_AUTOINCREMENT",
            "IS_GENERATEDCOLUMN"));
        check("generated_columns", () -> rows(meta.getColumns(null, "public", "ticket", "%"), "COLUMN_NAME",
            "IS_AUTOINCREMENT", "IS_NULLABLE"));
        check("tables", () -> rows(meta.getTables(null, "public", null, new String[] {"TABLE", "VIEW"}), "TABLE_NAME",
            "TABLE_TYPE", "REMARKS"));
        check("schemas", () -> rows(meta.getSchemas(null, "o%"), "TABLE_SCHEM"));
        check("identifiers", () -> List.of(meta.storesLowerCaseIdentifiers(), meta.getIdentifierQuoteString(),
            meta.getMaxColumnNameLength(), meta.supportsSavepoints(), meta.getDefaultTransactionIsolation()));
    }

    private static void values() throws SQLException {
        check("values_of_all_types", () -> {
            String insert = "INSERT INTO item (id, name, price, at, day, data, tags, is_new, code, notes, rate, big) "
                + "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            try (PreparedStatement statement = connection.prepareStatement(insert)) {
                for (int i = 100; i < 108; i++) {
                    PGobject notes = new PGobject();
                    notes.setType("jsonb");
                    notes.setValue("{\"n\": " + i + ", \"ä\": [1, null]}");
                    statement.setInt(1, i);
                    statement.setString(2, "Grüße 'x' \\ " + i);
                    statement.setBigDecimal(3, new BigDecimal("12.5"));
                    statement.setObject(4, OffsetDateTime.of(2024, 7, 1, 12, 0, 0, 1_000, ZoneOffset.ofHours(2)));
                    statement.setObject(5, LocalDate.of(2024, 12, 31));
                    statement.setBytes(6, new byte[] {1, 2, (byte) i});
                    statement.setArray(7, connection.createArrayOf("text", new Object[] {"a", "b, c", null}));
                    statement.setBoolean(8, i % 2 == 0);
                    statement.setObject(9, UUID.fromString("00000000-0000-4000-8000-000000000" + i));
                    statement.setObject(10, notes);
                    statement.setDouble(11, i / 3.0);
                    statement.setLong(12, Long.MIN_VALUE + i);
                    statement.executeUpdate();
                }
            }
            List<Object> found = new ArrayList<>();
            try (PreparedStatement statement = connection.prepareStatement("SELECT * FROM item WHERE id >= 100 AND id = ?")) {
                statement.unwrap(PGStatement.class).setPrepareThreshold(3);
                for (int i = 100; i < 108; i++) {
                    statement.setInt(1, i);
                    try (ResultSet row = statement.executeQuery()) {
                        row.next();
                        Array tags = row.getArray("tags");
                        found.add(List.of(row.getString("name"), row.getBigDecimal("price"),
                            row.getObject("at", OffsetDateTime.class).toInstant(), row.getObject("day", LocalDate.class),
                            Arrays.toString(row.getBytes("data")), Arrays.toString((Object[]) tags.getArray()),
                            tags.getBaseTypeName(), row.getBoolean("is_new"), row.getObject("code"),
                            row.getObject("notes"), row.getDouble("rate"), row.getLong("big")));
                    }
                }
            }
            return found;
        });
        check("times_without_zone", () -> {
            try (PreparedStatement statement = connection.prepareStatement(
                    "SELECT ?::timestamp, ?::date, ?::time, ?::timestamptz")) {
                statement.setObject(1, LocalDateTime.of(2024, 2, 29, 23, 59, 59, 999_999_000));
                statement.setDate(2, java.sql.Date.valueOf("1990-02-28"));
                statement.setTime(3, java.sql.Time.valueOf("07:08:09"));
                statement.setTimestamp(4, Timestamp.from(java.time.Instant.EPOCH));
                return rows(statement.executeQuery());
            }
        });
        check("lists_in_conditions", () -> {
            try (PreparedStatement statement = connection.prepareStatement(
                    "SELECT id FROM item WHERE id = ANY (?) AND name <> ALL (?) ORDER BY id")) {
                statement.setArray(1, connection.createArrayOf("int4", new Integer[] {1, 2, 3, 77}));
                statement.setArray(2, connection.createArrayOf("varchar", new String[] {"item 2"}));
                return rows(statement.executeQuery());
            }
        });
        check("texts_from_readers", () -> {
            try (PreparedStatement statement = connection.prepareStatement("INSERT INTO place VALUES ('west', 1, ?)")) {
                statement.setCharacterStream(1, new StringReader("long ".repeat(20_000)));
                statement.executeUpdate();
            }
            return rows("SELECT length(label) FROM place WHERE region = 'west'");
        });
    }

    private static void statements() throws SQLException {
        check("generated_keys", () -> {
            try (Statement statement = connection.createStatement()) {
                statement.executeUpdate("INSERT INTO entry (text) VALUES ('x'), ('y')", Statement.RETURN_GENERATED_KEYS);
                return rows(statement.getGeneratedKeys(), "id", "text");
            }
        });
        check("several_results", () -> {
            try (Statement statement = connection.createStatement()) {
                List<Object> found = new ArrayList<>();
                boolean isRows = statement.execute("SELECT 1; UPDATE entry SET text = 'q'; SELECT 2, 3");
                while (isRows || statement.getUpdateCount() >= 0) {
                    found.add(isRows ? rows(statement.getResultSet()) : statement.getUpdateCount());
                    isRows = statement.getMoreResults();
                }
                return found;
            }
        });
        check("escapes", () -> rows("SELECT {d '2024-01-02'}, {ts '2024-01-02 03:04:05'}, {fn concat('a', 'b')}, "
            + "{fn ucase('x')}, {fn mod(7, 3)}, {fn timestampadd(SQL_TSI_DAY, 1, {ts '2024-01-02 00:00:00'})}, "
            + "{fn locate('b', 'abc')}, {fn ifnull(NULL, 1)}"));
        check("called_function", () -> {
            run("CREATE FUNCTION plus(a int, b int) RETURNS int LANGUAGE SQL AS 'SELECT a + b'");
            try (CallableStatement call = connection.prepareCall("{? = call plus(?, ?)}")) {
                call.registerOutParameter(1, Types.INTEGER);
                call.setInt(2, 3);
                call.setInt(3, 4);
                call.execute();
                return call.getInt(1);
            }
        });
        check("limits_of_rows", () -> {
            try (Statement statement = connection.createStatement()) {
                statement.setMaxRows(3);
                return rows(statement.executeQuery("SELECT id FROM item ORDER BY id"));
            }
        });
        check("rows_in_parts", () -> {
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                statement.setFetchSize(3);
                int total = 0;
                for (ResultSet found = statement.executeQuery("SELECT id FROM item"); found.next();) {
                    total += found.getInt(1);
                }
                return total;
            } finally {
                connection.commit();
                connection.setAutoCommit(true);
            }
        });
        check("savepoints", () -> {
            connection.setAutoCommit(false);
            run("INSERT INTO no_key VALUES (10, 'kept')");
            Savepoint savepoint = connection.setSavepoint();
            run("INSERT INTO no_key VALUES (11, 'undone')");
            connection.rollback(savepoint);
            connection.releaseSavepoint(connection.setSavepoint("named"));
            connection.commit();
            connection.setAutoCommit(true);
            return rows("SELECT * FROM no_key WHERE a >= 10");
        });
        check("savepoint_of_each_statement", () -> {
            try (Connection own = DriverManager.getConnection(url + (url.contains("?") ? "&" : "?") + "autosave=always",
                    user, password)) {
                own.setAutoCommit(false);
                try (Statement statement = own.createStatement()) {
                    statement.executeUpdate("INSERT INTO no_key VALUES (20, 'kept')");
                    try {
                        statement.executeUpdate("INSERT INTO item (id, name) VALUES (1, 'double')");
                    } catch (SQLException failure) {
                        statement.executeUpdate("INSERT INTO no_key VALUES (21, '" + failure.getSQLState() + "')");
                    }
                }
                own.commit();
            }
            return rows("SELECT * FROM no_key WHERE a >= 20 ORDER BY a");
        });
        check("isolation_and_read_only", () -> {
            List<Object> found = new ArrayList<>();
            for (int level : new int[] {Connection.TRANSACTION_READ_COMMITTED, Connection.TRANSACTION_REPEATABLE_READ,
                    Connection.TRANSACTION_SERIALIZABLE}) {
                connection.setTransactionIsolation(level);
                found.add(connection.getTransactionIsolation() == level);
            }
            connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            connection.setReadOnly(true);
            try {
                run("INSERT INTO no_key VALUES (30, 'x')");
            } catch (SQLException failure) {
                found.add(failure.getSQLState());
            }
            connection.setReadOnly(false);
            return found;
        });
        check("copied", () -> {
            var copies = connection.unwrap(PGConnection.class).getCopyAPI();
            long in = copies.copyIn("COPY no_key FROM STDIN (FORMAT csv)", new StringReader("40,\"a, b\"\n41,\n"));
            StringWriter out = new StringWriter();
            long count = copies.copyOut("COPY (SELECT * FROM no_key WHERE a >= 40 ORDER BY a) TO STDOUT", out);
            return List.of(in, count, out.toString());
        });
        check("notifications", () -> {
            try (Connection other = opened(false); Statement statement = other.createStatement()) {
                run("LISTEN news");
                statement.execute("NOTIFY news, 'hello'");
                var found = connection.unwrap(PGConnection.class).getNotifications(10_000);
                return List.of(found.length, found[0].getName(), found[0].getParameter());
            }
        });
        check("wrong_statement", () -> {
            try {
                return rows("SELECT id, nothing FROM item");
            } catch (org.postgresql.util.PSQLException failure) {
                return List.of(failure.getSQLState(), failure.getServerErrorMessage().getPosition());
            }
        });
        check("violated_constraint", () -> {
            try {
                return run("INSERT INTO child VALUES (2, 999)");
            } catch (org.postgresql.util.PSQLException failure) {
                var message = failure.getServerErrorMessage();
                return List.of(failure.getSQLState(), message.getTable(), message.getConstraint(), message.getSchema());
            }
        });
        check("refcursor", () -> {
            connection.setAutoCommit(false);
            run("DECLARE c SCROLL CURSOR FOR SELECT id FROM item ORDER BY id");
            Object found = List.of(rows("FETCH 2 FROM c"), rows("FETCH LAST FROM c"));
            connection.commit();
            connection.setAutoCommit(true);
            return found;
        });
    }
}
