import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;

/** What programs in Java do with PostgreSQL's driver, a line of output for each finding. */
public class Jdbc {
    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0], "someone", "")) {
            metadata(connection.getMetaData());
            prepared(connection);
            fetched(connection);
            failed(connection);
        }
    }

    private static void metadata(DatabaseMetaData meta) throws SQLException {
        System.out.println("product " + meta.getDatabaseProductName() + " " + meta.getDatabaseMajorVersion());
        all("schema", meta.getSchemas(), "TABLE_SCHEM");
        all("table", meta.getTables(null, "public", "%", null), "TABLE_NAME", "TABLE_TYPE");
        all("column", meta.getColumns(null, "public", "t", "%"), "COLUMN_NAME", "TYPE_NAME", "COLUMN_SIZE", "NULLABLE");
        all("key", meta.getPrimaryKeys(null, "public", "t"), "COLUMN_NAME", "KEY_SEQ", "PK_NAME");
        all("index", meta.getIndexInfo(null, "public", "t", false, false), "INDEX_NAME", "COLUMN_NAME", "NON_UNIQUE");
        all("imported", meta.getImportedKeys(null, "public", "t"), "FKCOLUMN_NAME");
        all("function", meta.getFunctions(null, "public", "%"), "FUNCTION_NAME");
        all("catalog", meta.getCatalogs(), "TABLE_CAT");
        all("privilege", meta.getTablePrivileges(null, "public", "nothing"), "TABLE_NAME");
        int types = 0;
        for (ResultSet rows = meta.getTypeInfo(); rows.next();) {
            types++;
        }
        System.out.println("types " + (types > 10));
    }

    private static void all(String what, ResultSet rows, String... columns) throws SQLException {
        while (rows.next()) {
            StringBuilder line = new StringBuilder(what);
            for (String column : columns) {
                line.append(' ').append(rows.getString(column));
            }
            System.out.println(line);
        }
    }

    private static void prepared(Connection connection) throws SQLException {
        String insert = "INSERT INTO t (id, k, name, x, at) VALUES (?, ?, ?, ?, ?)";
        try (PreparedStatement statement = connection.prepareStatement(insert)) {
            for (int i = 1; i <= 20; i++) {
                statement.setInt(1, i);
                statement.setString(2, "k" + i);
                statement.setString(3, "ü");
                statement.setBigDecimal(4, new BigDecimal("1.25"));
                statement.setTimestamp(5, new Timestamp(1_600_000_000_000L));
                statement.addBatch();
            }
            System.out.println("batch " + statement.executeBatch().length);
        }
        try (Statement statement = connection.createStatement()) {
            statement.execute("FLUSH");
        }
        // From the fifth time on, the driver names the statement and asks for values in binary.
        try (PreparedStatement statement = connection.prepareStatement("SELECT id, x, at FROM t WHERE id = ? AND x < ?")) {
            for (int i = 1; i <= 8; i++) {
                statement.setInt(1, i);
                statement.setBigDecimal(2, new BigDecimal("7"));
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    if (rows.getInt(1) != i || rows.getTimestamp(3).getTime() != 1_600_000_000_000L) {
                        throw new SQLException("wrong row " + i);
                    }
                    if (i == 8) {
                        System.out.println("found " + rows.getInt(1) + " " + rows.getBigDecimal(2));
                    }
                }
            }
        }
    }

    private static void fetched(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(6);
            int total = 0;
            for (ResultSet rows = statement.executeQuery("SELECT id FROM t"); rows.next();) {
                total++;
            }
            System.out.println("fetched " + total);
        }
        connection.rollback();
        connection.setAutoCommit(true);
        System.out.println("valid " + connection.isValid(5) + " isolation " + connection.getTransactionIsolation());
    }

    private static void failed(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeQuery("SELECT nothing FROM t");
        } catch (SQLException failure) {
            System.out.println("failed " + failure.getSQLState());
        }
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(1);
            statement.executeQuery("SELECT count(*) FROM generate_series(1, 100000) AS a(x), "
                + "generate_series(1, 100000) AS b(y) WHERE x + y < 0");
        } catch (SQLException failure) {
            System.out.println("cancelled " + failure.getSQLState());
        }
    }
}
