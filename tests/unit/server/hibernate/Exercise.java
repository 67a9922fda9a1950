import com.fasterxml.jackson.databind.ObjectMapper;
import jakarta.persistence.LockModeType;
import jakarta.persistence.OptimisticLockException;
import jakarta.persistence.criteria.CriteriaBuilder;
import jakarta.persistence.criteria.Join;
import jakarta.persistence.criteria.Root;
import java.math.BigDecimal;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import java.util.function.Function;
import org.hibernate.ScrollMode;
import org.hibernate.ScrollableResults;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.StatelessSession;
import org.hibernate.cfg.Configuration;
import org.hibernate.exception.ConstraintViolationException;

/** Asks the database questions with Hibernate, and prints the answers as JSON: a text is an error. */
public class Exercise {
    private static final Map<String, Object> ANSWERS = new LinkedHashMap<>();
    private static String url;
    private static String user;
    private static String password;
    private static SessionFactory factory;

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        user = arguments[1];
        password = arguments[2];
        factory = opened("create", Shop.ENTITIES);
        try {
            definitions();
            keys();
            values();
            failures();
            associations();
            queries();
            changes();
            locks();
            transactions();
            versionsOfSchemas();
        } finally {
            factory.close();
        }
        dropped();
        System.out.println(new ObjectMapper().writeValueAsString(ANSWERS));
    }

    private static SessionFactory opened(String action, Class<?>... entities) {
        Configuration configuration = new Configuration();
        configuration.setProperty("hibernate.connection.url", url);
        configuration.setProperty("hibernate.connection.username", user);
        configuration.setProperty("hibernate.connection.password", password);
        configuration.setProperty("hibernate.hbm2ddl.auto", action);
        configuration.setProperty("hibernate.hbm2ddl.create_namespaces", "true");
        // The schema of an article does not exist yet when it is dropped first.
        boolean halts = !List.of(entities).contains(Shop.Article.class);
        configuration.setProperty("hibernate.hbm2ddl.halt_on_error", String.valueOf(halts));
        configuration.setProperty("hibernate.jdbc.batch_size", "50");
        configuration.setProperty("hibernate.order_inserts", "true");
        configuration.setProperty("hibernate.jdbc.time_zone", "UTC");
        configuration.setProperty("hibernate.show_sql", System.getenv().getOrDefault("SHOW_SQL", "false"));
        Arrays.stream(entities).forEach(configuration::addAnnotatedClass);
        return configuration.buildSessionFactory();
    }

    private static void check(String name, Callable<?> question) {
        Object answer;
        try {
            answer = question.call();
        } catch (Throwable failure) {
            answer = described(failure);
        }
        ANSWERS.put(name, answer);
    }

    private static String described(Throwable failure) {
        StringBuilder found = new StringBuilder();
        for (Throwable one = failure; one != null; one = one.getCause()) {
            found.append(one.getClass().getSimpleName()).append(": ").append(one.getMessage()).append('\n');
        }
        StackTraceElement[] trace = failure.getStackTrace();
        Arrays.stream(trace).filter(e -> e.getClassName().startsWith("Exercise")).limit(2).forEach(found::append);
        return found.toString();
    }

    /** The class, SQLSTATE and constraint of an expected failure. */
    private static List<Object> failure(Runnable action) {
        try {
            action.run();
        } catch (RuntimeException failure) {
            List<Object> found = new ArrayList<>();
            for (Throwable one = failure; one != null; one = one.getCause()) {
                found.add(one.getClass().getSimpleName());
                if (one instanceof ConstraintViolationException violation) {
                    found.add(violation.getKind().toString());
                    found.add(violation.getConstraintName());
                }
                if (one instanceof SQLException sql) {
                    found.add(sql.getSQLState());
                }
            }
            return found;
        }
        return List.of("no failure");
    }

    private static <T> T asked(Function<Session, T> question) {
        return factory.fromTransaction(question);
    }

    private static void done(Consumer<Session> action) {
        factory.inTransaction(action);
    }

    private static List<?> rows(Session session, String hql, Object... parameters) {
        var query = session.createSelectionQuery(hql, Object.class);
        for (int i = 0; i < parameters.length; i++) {
            query.setParameter(i + 1, parameters[i]);
        }
        return texts(query.list());
    }

    private static List<?> rows(String hql, Object... parameters) {
        return asked(session -> rows(session, hql, parameters));
    }

    private static List<?> natively(String sql) {
        return asked(session -> texts(session.createNativeQuery(sql, Object.class).list()));
    }

    private static List<?> texts(List<?> rows) {
        return rows.stream()
            .map(row -> row instanceof Object[] values ? Arrays.stream(values).map(Exercise::text).toList() : text(row))
            .toList();
    }

    private static List<?> sorted(List<?> rows) {
        return rows.stream().sorted().toList();
    }

    private static String text(Object value) {
        if (value instanceof Object[] values) {
            return Arrays.deepToString(values);
        }
        return value instanceof byte[] bytes ? Arrays.toString(bytes) : String.valueOf(value);
    }

    private static void definitions() {
        check("create_columns", () -> natively("""
            SELECT table_name, column_name, data_type, udt_name, is_nullable, character_maximum_length,
                   CASE WHEN data_type = 'numeric' THEN numeric_precision END, column_default, is_identity
            FROM information_schema.columns WHERE table_schema = 'public'
            ORDER BY table_name, column_name"""));
        check("create_constraints", () -> natively("""
            SELECT c.relname, k.conname, k.contype, k.confdeltype, k.confupdtype
            FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'public' AND k.contype <> 'n' ORDER BY 1, 2"""));
        check("create_indexes", () -> natively("""
            SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"""));
        check("create_sequences", () -> natively("""
            SELECT sequence_name, data_type, start_value, increment FROM information_schema.sequences ORDER BY 1"""));
        check("create_comments", () -> natively("""
            SELECT obj_description('customer'::regclass, 'pg_class'), col_description('customer'::regclass, attnum)
            FROM pg_attribute WHERE attrelid = 'customer'::regclass AND attname = 'name'"""));
    }

    private static void keys() {
        check("identity_keys", () -> {
            List<Long> ids = new ArrayList<>();
            done(session -> {
                for (String name : List.of("Ann", "Bob", "Cem", "Dora")) {
                    Shop.Customer customer = new Shop.Customer(name, name.toLowerCase() + "@example.com");
                    customer.status = name.equals("Dora") ? Shop.Status.CLOSED : Shop.Status.ACTIVE;
                    customer.size = Shop.Size.values()[ids.size() % 3];
                    customer.born = LocalDate.of(1990 + ids.size(), 2, 28);
                    customer.address = new Shop.Address("Main street " + ids.size(), ids.size() < 2 ? "Bern" : "Rome");
                    session.persist(customer);
                    ids.add(customer.id);
                }
            });
            return ids;
        });
        check("sequence_keys_in_batches", () -> {
            List<Long> ids = new ArrayList<>();
            done(session -> {
                for (int i = 1; i <= 120; i++) {
                    Shop.Product product = new Shop.Product("p" + i, i + ".50");
                    session.persist(product);
                    ids.add(product.id);
                }
            });
            return List.of(ids, rows("select count(*), min(id), max(id), sum(price) from Product"));
        });
        check("table_generator", () -> {
            List<Integer> ids = new ArrayList<>();
            done(session -> {
                Shop.Category all = new Shop.Category("all", null);
                session.persist(all);
                for (int i = 1; i <= 11; i++) {
                    Shop.Category category = new Shop.Category("category " + i, all);
                    session.persist(category);
                    ids.add(category.id);
                }
            });
            return List.of(ids, natively("SELECT * FROM generated_ids"));
        });
        check("uuid_key", () -> {
            UUID id = asked(session -> {
                Shop.Visit visit = new Shop.Visit();
                session.persist(visit);
                return visit.id;
            });
            return List.of(asked(session -> session.find(Shop.Visit.class, id).id).equals(id),
                rows("select count(*) from Visit where id = ?1", id));
        });
        check("embedded_id", () -> {
            done(session -> {
                for (int i = 0; i < 6; i++) {
                    session.persist(new Shop.Stock(i < 3 ? "north" : "south", i, 10 * i));
                }
            });
            done(session -> session.find(Shop.Stock.class, new Shop.Place("south", 4)).quantity += 5);
            return List.of(
                asked(session -> session.find(Shop.Stock.class, new Shop.Place("south", 4)).quantity),
                asked(session -> session.find(Shop.Stock.class, new Shop.Place("west", 4)) == null),
                rows("select place.warehouse, sum(quantity) from Stock group by place.warehouse order by 1"),
                rows("select quantity from Stock where place in (?1, ?2) order by 1",
                    new Shop.Place("north", 1), new Shop.Place("south", 5)));
        });
        check("several_keys_at_once", () -> asked(session -> texts(
            session.findMultiple(Shop.Customer.class, List.of(3L, 1L, 99L)).stream()
                .map(customer -> customer == null ? "none" : customer.name).toList())));
        check("natural_id", () -> asked(session -> List.of(
            session.bySimpleNaturalId(Shop.Product.class).load("p7").price)));
    }

    private static void values() {
        check("times", () -> {
            UUID id = asked(session -> {
                Shop.Visit visit = new Shop.Visit();
                visit.day = LocalDate.of(2024, 2, 29);
                visit.clock = LocalDateTime.of(2024, 2, 29, 23, 59, 58, 123_456_000);
                visit.zoned = OffsetDateTime.of(2024, 7, 1, 12, 0, 0, 1_000, ZoneOffset.ofHours(2));
                visit.moment = Instant.parse("2024-03-31T01:30:00.5Z");
                visit.hour = LocalTime.of(7, 8, 9);
                visit.lasted = Duration.ofMinutes(90).plusNanos(1_500);
                session.persist(visit);
                return visit.id;
            });
            return asked(session -> {
                Shop.Visit visit = session.find(Shop.Visit.class, id);
                return List.of(text(visit.day), text(visit.clock), text(visit.zoned.toInstant()), text(visit.moment),
                    text(visit.hour), text(visit.lasted));
            });
        });
        check("questions_of_times", () -> List.of(
            rows("select extract(year from day), extract(month from day), clock + 1 day, truncate(clock, hour), "
                + "day - 1 month, cast(clock as LocalDate) from Visit where day is not null"),
            rows("select count(*) from Visit where moment between ?1 and ?2",
                Instant.parse("2024-03-31T00:00:00Z"), Instant.parse("2024-04-01T00:00:00Z")),
            rows("select (clock - ?1) by hour from Visit where day = ?2",
                LocalDateTime.of(2024, 2, 28, 23, 0), LocalDate.of(2024, 2, 29)),
            rows("select count(*) from Visit where zoned < current_timestamp and day < local date"),
            rows("select format(clock as 'yyyy-MM-dd HH:mm') from Visit where day is not null"),
            rows("select extract(epoch from moment), extract(week from day), extract(day of week from day) "
                + "from Visit where day is not null")));
        check("numbers_and_small_types", () -> {
            UUID id = asked(session -> {
                Shop.Visit visit = new Shop.Visit();
                visit.measured = 0.1;
                visit.rough = 0.1f;
                visit.small = -3;
                visit.tiny = 100;
                visit.paid = true;
                visit.letter = 'ü';
                visit.size = Shop.Size.LARGE;
                visit.other = UUID.fromString("00000000-0000-4000-8000-00000000000a");
                visit.exact = new BigDecimal("12345678901234567890.0123456789");
                session.persist(visit);
                return visit.id;
            });
            return List.of(asked(session -> {
                Shop.Visit v = session.find(Shop.Visit.class, id);
                return texts(List.of(v.measured, v.rough, v.small, v.tiny, v.paid, v.letter, v.size, v.other, v.exact));
            }), rows("select count(*) from Visit where paid and small < 0 and letter = ?1 and size = ?2 and other = ?3",
                'ü', Shop.Size.LARGE, UUID.fromString("00000000-0000-4000-8000-00000000000a")));
        });
        check("enums", () -> List.of(
            rows("select name from Customer where status = ?1 order by name", Shop.Status.ACTIVE),
            rows("select name from Customer where size > SMALL order by name"),
            rows("select status, count(*) from Customer group by status order by status"),
            natively("SELECT name, status, size FROM customer ORDER BY name")));
        check("bytes_and_long_texts", () -> {
            byte[] picture = new byte[100];
            for (int i = 0; i < picture.length; i++) {
                picture[i] = (byte) (i * 7);
            }
            String description = "Grüße, 日本語 'quoted' \\ back ".repeat(1_000);
            done(session -> {
                Shop.Product product = session.find(Shop.Product.class, 1L);
                product.picture = picture;
                product.description = description;
            });
            return asked(session -> {
                Shop.Product product = session.find(Shop.Product.class, 1L);
                return List.of(Arrays.equals(product.picture, picture), product.description.equals(description),
                    rows(session, "select length(description), upper(substring(description, 1, 2)) from Product where id = 1"));
            });
        });
        check("json", () -> {
            done(session -> {
                Map<String, Object> attributes = new TreeMap<>();
                attributes.put("color", "red");
                attributes.put("sizes", List.of(1, 2, 3));
                attributes.put("deep", Map.of("ä", true));
                session.find(Shop.Product.class, 2L).attributes = attributes;
            });
            done(session -> session.find(Shop.Product.class, 2L).attributes.put("price", 2.5));
            return List.of(
                asked(session -> new TreeMap<>(session.find(Shop.Product.class, 2L).attributes)),
                natively("SELECT attributes->>'color', jsonb_typeof(attributes->'sizes') FROM product WHERE id = 2"),
                natively("SELECT id FROM product WHERE attributes @> '{\"color\": \"red\"}'"));
        });
        check("arrays", () -> {
            done(session -> {
                Shop.Product product = session.find(Shop.Product.class, 3L);
                product.labels = new String[] {"new", "a \"quoted\", one", null};
                product.sizes = List.of(3, 1, 2);
                session.find(Shop.Product.class, 4L).labels = new String[] {"old"};
            });
            return List.of(
                asked(session -> text(session.find(Shop.Product.class, 3L).labels)
                    + session.find(Shop.Product.class, 3L).sizes),
                rows("select id from Product where array_contains(labels, ?1)", "new"),
                rows("select array_length(labels), array_get(sizes, 1), array_append(sizes, 9) "
                    + "from Product where id = 3"),
                rows("select id from Product where labels is not null and array_intersects(labels, array('old', 'x'))"),
                rows("select array_agg(id) within group (order by id desc) from Product where id < 4"));
        });
        check("functions", () -> rows("""
            select upper(name), substring(email, 1, 2), concat(name, '-', id), locate('n', name), length(name),
                   coalesce(null, name), nullif(name, 'Ann'), trim(both 'A' from name), lpad(name, 5, '*'),
                   replace(name, 'n', 'm'), case size when SMALL then 's' else 'other' end, left(name, 2),
                   mod(id, 2), abs(-id), round(1.255, 2), ceiling(1.2), power(2, 3), cast(id as String),
                   name || '!', name like 'A%', name ilike 'a%', greatest(id, 2L), sign(-3)
            from Customer order by id"""));
    }

    private static void failures() {
        check("duplicate_value", () -> failure(() -> done(session ->
            session.persist(new Shop.Customer("Eve", "ann@example.com")))));
        check("missing_value", () -> failure(() -> done(session ->
            session.createNativeMutationQuery("INSERT INTO customer (version) VALUES (0)").executeUpdate())));
        check("long_text", () -> failure(() -> done(session ->
            session.persist(new Shop.Customer("x".repeat(41), null)))));
        check("failed_check", () -> failure(() -> done(session ->
            session.persist(new Shop.Product("minus", "-1")))));
        check("referenced_row", () -> {
            done(session -> session.persist(
                session.find(Shop.Customer.class, 1L).buys(session.find(Shop.Product.class, 1L), 2)));
            return List.of(
                failure(() -> done(session ->
                    session.createMutationQuery("delete from Product where id = 1").executeUpdate())),
                failure(() -> done(session -> session.createNativeMutationQuery(
                    "INSERT INTO purchase (id, customer_id, amount, made) VALUES (-1, 99, 1, now())").executeUpdate())));
        });
        check("duplicate_key", () -> failure(() -> done(session ->
            session.persist(new Shop.Stock("north", 1, 1)))));
        check("wrong_statement", () -> failure(() -> done(session ->
            session.createNativeQuery("SELECT nothing FROM customer", Object.class).list())));
    }

    private static void associations() {
        check("one_to_many", () -> {
            done(session -> {
                Shop.Customer bob = session.find(Shop.Customer.class, 2L);
                for (long i = 1; i <= 4; i++) {
                    bob.buys(session.find(Shop.Product.class, i), (int) i);
                }
            });
            return List.of(
                asked(session -> session.find(Shop.Customer.class, 2L).purchases.stream().map(p -> p.amount).toList()),
                asked(session -> session.find(Shop.Customer.class, 2L).purchased));
        });
        check("orphans", () -> {
            done(session -> session.find(Shop.Customer.class, 2L).purchases.remove(0));
            return rows("select amount from Purchase where customer.id = 2 order by id");
        });
        check("many_to_many", () -> {
            done(session -> {
                List<Shop.Category> categories =
                    session.createSelectionQuery("from Category order by id", Shop.Category.class).list();
                session.find(Shop.Product.class, 1L).categories.addAll(categories.subList(0, 3));
                session.find(Shop.Product.class, 2L).categories.addAll(categories.subList(2, 5));
            });
            done(session -> session.find(Shop.Product.class, 1L).categories.remove(0));
            return List.of(
                rows("select p.id, c.name from Product p join p.categories c order by 1, 2"),
                rows("select p.id from Product p where p.categories is not empty order by 1"),
                rows("select p.id, size(p.categories) from Product p where p.id < 4 order by 1"));
        });
        check("collections_of_values", () -> {
            done(session -> {
                Shop.Customer ann = session.find(Shop.Customer.class, 1L);
                ann.tags.addAll(List.of("vip", "early", "loud"));
                ann.phones.put("home", "1");
                ann.phones.put("work", "2");
            });
            done(session -> {
                Shop.Customer ann = session.find(Shop.Customer.class, 1L);
                ann.tags.remove("loud");
                ann.phones.put("home", "3");
            });
            return List.of(
                asked(session -> List.copyOf(new java.util.TreeSet<>(session.find(Shop.Customer.class, 1L).tags))),
                asked(session -> new TreeMap<>(session.find(Shop.Customer.class, 1L).phones)),
                rows("select c.name from Customer c where 'vip' member of c.tags"),
                rows("select key(p), value(p) from Customer c join c.phones p order by 1"));
        });
        check("cascade_delete", () -> {
            done(session -> session.remove(session.find(Shop.Customer.class, 2L)));
            return rows("select count(*) from Purchase where customer.id = 2");
        });
        check("cascade_in_the_database", () -> {
            done(session -> {
                Shop.Category root = new Shop.Category("root", null);
                session.persist(root);
                session.persist(new Shop.Category("leaf", root));
            });
            done(session ->
                session.createMutationQuery("delete from Category where name = 'root'").executeUpdate());
            return rows("select name from Category where name in ('root', 'leaf')");
        });
        check("one_table_for_classes", () -> {
            done(session -> {
                for (int i = 1; i <= 4; i++) {
                    Shop.Payment payment;
                    if (i % 2 == 0) {
                        Shop.Card card = new Shop.Card();
                        card.number = "n" + i;
                        payment = card;
                    } else {
                        Shop.Cash cash = new Shop.Cash();
                        cash.coins = i;
                        payment = cash;
                    }
                    payment.amount = new BigDecimal(i).setScale(2);
                    session.persist(payment);
                }
            });
            return List.of(
                asked(session -> session.createSelectionQuery("from Payment order by id", Shop.Payment.class).list()
                    .stream().map(p -> p.getClass().getSimpleName() + p.amount).toList()),
                rows("select number from Card order by id"),
                rows("select type(p), sum(p.amount) from Payment p group by type(p) order by 2"),
                rows("select treat(p as Cash).coins from Payment p where treat(p as Cash).coins > 1"));
        });
        check("joined_tables_for_classes", () -> {
            done(session -> {
                for (int i = 1; i <= 3; i++) {
                    Shop.Car car = new Shop.Car();
                    car.plate = "c" + i;
                    car.seats = i;
                    session.persist(car);
                    Shop.Truck truck = new Shop.Truck();
                    truck.plate = "t" + i;
                    truck.load = new BigDecimal(i + ".5");
                    session.persist(truck);
                }
            });
            return List.of(
                asked(session -> session.createSelectionQuery("from Vehicle order by plate", Shop.Vehicle.class).list()
                    .stream().map(v -> v.getClass().getSimpleName() + v.plate).toList()),
                rows("select plate, seats from Car where seats > 1 order by 1"),
                rows("select plate, load from Truck order by load desc"));
        });
        check("bulk_changes_of_joined_tables", () -> List.of(
            asked(session -> session.createMutationQuery(
                "update Car set seats = seats + 1, plate = upper(plate) where seats > 1").executeUpdate()),
            asked(session -> session.createMutationQuery("delete from Truck where load > 2").executeUpdate()),
            rows("select plate, type(v) from Vehicle v order by 1"),
            asked(session -> session.createMutationQuery(
                "insert into Car (plate, seats) select concat(plate, 'x'), seats from Car").executeUpdate()),
            rows("select plate, seats from Car order by 1")));
        check("entity_of_a_view", () -> rows("select customer, amount from Sales order by 1"));
    }

    private static void queries() {
        check("rows_of_three_tables", () -> {
            done(session -> {
                for (long c : new long[] {1, 3, 4}) {
                    Shop.Customer customer = session.find(Shop.Customer.class, c);
                    for (long p = 5; p < 5 + c; p++) {
                        customer.buys(session.find(Shop.Product.class, p), (int) (10 * c + p));
                    }
                }
            });
            return rows("select id, customer.name, product.code, amount from Purchase order by id");
        });
        check("fetched_join", () -> asked(session -> session.createSelectionQuery(
                "select distinct c from Customer c left join fetch c.purchases p left join fetch p.product order by c.id",
                Shop.Customer.class).list().stream()
            .map(c -> c.name + c.purchases.stream().map(p -> p.product.code + p.amount).toList()).toList()));
        check("entity_graph", () -> asked(session -> {
            jakarta.persistence.EntityGraph<Shop.Customer> graph = session.createEntityGraph(Shop.Customer.class);
            graph.addSubgraph("purchases").addAttributeNodes("product");
            return session.createSelectionQuery("from Customer where id = 3", graph).list().stream()
                .map(c -> c.name + c.purchases.stream().map(p -> p.product.code).toList()).toList();
        }));
        check("grouped", () -> List.of(
            rows("""
                select c.name, count(p), sum(p.amount), avg(p.amount), min(p.product.price), max(p.product.code)
                from Customer c join c.purchases p group by c.id, c.name having count(p) > 1 order by c.name"""),
            rows("select count(distinct address.city), every(id > 0), any(id > 3) from Customer"),
            rows("select listagg(name, ', ') within group (order by name desc) from Customer"),
            rows("select sum(amount) filter (where amount > 20) from Purchase")));
        check("pages", () -> List.of(
            asked(session -> texts(session.createSelectionQuery(
                "select code from Product order by id desc", Object.class)
                .setFirstResult(10).setMaxResults(5).list())),
            asked(session -> texts(session.createSelectionQuery(
                "select name from Customer order by name", Object.class).setMaxResults(2).list())),
            rows("select name from Customer order by born desc nulls last, name limit 2 offset 1"),
            asked(session -> session.createSelectionQuery("from Product", Shop.Product.class).getResultCount())));
        check("subqueries", () -> List.of(
            rows("select name from Customer c where exists (select 1 from Purchase p where p.customer = c "
                + "and p.amount > 30) order by 1"),
            rows("select code from Product where price > (select avg(price) from Product) order by id limit 3"),
            rows("select c.name, (select max(p.amount) from Purchase p where p.customer = c) from Customer c order by 1"),
            rows("select amount from Purchase where amount >= all (select amount from Purchase)"),
            rows("select c.name, x.total from Customer c join lateral (select sum(p.amount) as total from c.purchases p) x "
                + "order by 1")));
        check("set_operations_and_with", () -> List.of(
            sorted(rows("select name from Customer where id < 4 union all select code from Product where id < 3")),
            sorted(rows("select id from Product where id < 5 intersect select id from Product where id > 2")),
            rows("with x as (select c.id as id, count(p) as n from Customer c left join c.purchases p group by c.id) "
                + "select c.name, t.n from Customer c join x t on t.id = c.id order by 1"),
            rows("with tree as (select c.id as id, c.name as name, 1 as depth from Category c where c.parent is null "
                + "union all select c.id as id, c.name as name, t.depth + 1 as depth from tree t join Category c "
                + "on c.parent.id = t.id) select count(*), max(depth) from tree")));
        check("window_functions", () -> rows("""
            select c.name, p.amount, rank() over (partition by c.id order by p.amount desc),
                   sum(p.amount) over (order by p.id), lag(p.amount) over (order by p.id)
            from Purchase p join p.customer c order by p.id"""));
        check("criteria", () -> asked(session -> {
            CriteriaBuilder builder = session.getCriteriaBuilder();
            var query = builder.createTupleQuery();
            Root<Shop.Customer> customer = query.from(Shop.Customer.class);
            Join<Shop.Customer, Shop.Purchase> purchase = customer.join("purchases");
            query.multiselect(customer.get("name"), builder.sum(purchase.<Integer>get("amount")),
                builder.count(purchase));
            query.where(builder.or(
                builder.like(customer.<String>get("name"), "%n%"),
                builder.equal(customer.get("address").get("city"), "Rome")),
                customer.get("status").in(Shop.Status.ACTIVE, Shop.Status.CLOSED));
            query.groupBy(customer.get("name"));
            query.having(builder.greaterThan(builder.count(purchase), 0L));
            query.orderBy(builder.asc(customer.get("name")));
            return session.createQuery(query).getResultList().stream().map(t -> text(t.toArray())).toList();
        }));
        check("native_queries", () -> List.of(
            asked(session -> texts(session.createNativeQuery(
                    "SELECT name, born, version FROM customer WHERE id > :id ORDER BY id", Object[].class)
                .setParameter("id", 2).list())),
            asked(session -> session.createNativeQuery("SELECT * FROM product WHERE id < 3 ORDER BY id", Shop.Product.class)
                .list().stream().map(p -> p.code + p.price).toList()),
            asked(session -> texts(session.createNativeQuery(
                    "SELECT c.name, (SELECT count(*) FROM purchase p WHERE p.customer_id = c.id) AS n FROM customer c "
                        + "WHERE c.name IN (:names) ORDER BY id", Object[].class)
                .setParameterList("names", List.of("Ann", "Cem")).list()))));
        check("scrolled", () -> asked(session -> {
            long total = 0;
            int count = 0;
            try (ScrollableResults<Shop.Product> rows = session.createSelectionQuery(
                    "from Product order by id", Shop.Product.class)
                    .setFetchSize(7).scroll(ScrollMode.FORWARD_ONLY)) {
                while (rows.next()) {
                    total += rows.get().id;
                    count++;
                }
            }
            return List.of(count, total);
        }));
        check("scrolled_in_any_direction", () -> asked(session -> {
            try (ScrollableResults<Object> rows = session.createSelectionQuery(
                    "select name from Customer order by name", Object.class).scroll(ScrollMode.SCROLL_INSENSITIVE)) {
                rows.last();
                Object last = rows.get();
                rows.first();
                return List.of(last, rows.get());
            }
        }));
        check("streamed", () -> asked(session -> session.createSelectionQuery("select id from Product", Long.class)
            .setFetchSize(20).getResultStream().mapToLong(id -> id).sum()));
        check("tuples", () -> List.of(
            rows("select id from Product where (id, code) in ((1L, 'p1'), (2L, 'p2'), (3L, 'x')) order by 1"),
            rows("select id from Customer where id in ?1 order by id", List.of(1L, 3L, 7L))));
    }

    private static void changes() {
        check("changed_columns", () -> {
            done(session -> session.find(Shop.Customer.class, 3L).name = "Cemal");
            return rows("select name, version from Customer where id = 3");
        });
        check("default_of_the_database", () -> List.of(
            asked(session -> session.createSelectionQuery("from Purchase where id = 1", Shop.Purchase.class)
                .getSingleResult().priority),
            asked(session -> {
                Shop.Purchase purchase =
                    session.find(Shop.Customer.class, 1L).buys(session.find(Shop.Product.class, 9L), 1);
                session.flush();
                return purchase.priority;
            }),
            rows("select count(*) from Purchase where made > ?1", Instant.now().minusSeconds(3_600))));
        check("merge_and_refresh", () -> {
            Shop.Customer detached = asked(session -> session.find(Shop.Customer.class, 3L));
            detached.address.city = "Oslo";
            done(session -> session.merge(detached));
            return asked(session -> {
                Shop.Customer customer = session.find(Shop.Customer.class, 3L);
                session.createNativeMutationQuery("UPDATE customer SET street = 'Side street' WHERE id = 3")
                    .executeUpdate();
                session.refresh(customer);
                return List.of(customer.address.street, customer.address.city, customer.version);
            });
        });
        check("bulk_update", () -> List.of(
            asked(session -> session.createMutationQuery(
                "update Product set price = price * 2, name = upper(name) where id between 100 and 110").executeUpdate()),
            asked(session -> session.createMutationQuery(
                "update versioned Product p set p.price = (select avg(amount) from Purchase) where p.id = 20")
                .executeUpdate()),
            rows("select id, price, name, version from Product where id in (20, 100, 111) order by id")));
        check("bulk_delete", () -> List.of(
            asked(session -> session.createMutationQuery(
                "delete from Product p where p.id > 115 and not exists (select 1 from Purchase x where x.product = p)")
                .executeUpdate()),
            rows("select count(*) from Product")));
        check("bulk_insert", () -> List.of(
            asked(session -> session.createMutationQuery(
                "insert into Stock (place.warehouse, place.shelf, quantity) "
                + "select 'east', place.shelf, quantity from Stock where place.warehouse = 'north'").executeUpdate()),
            asked(session -> session.createMutationQuery(
                "insert into Product (code, name, price, version) values ('v1', 'one', 1, 0), ('v2', 'two', 2, 0)")
                .executeUpdate()),
            rows("select code, price from Product where code like 'v%' order by code"),
            rows("select place.shelf, quantity from Stock where place.warehouse = 'east' order by 1")));
        check("insert_on_conflict", () -> List.of(
            asked(session -> session.createMutationQuery(
                "insert into Stock (place.warehouse, place.shelf, quantity) values ('east', 0, 7), ('east', 9, 9) "
                + "on conflict (place.warehouse, place.shelf) do update set quantity = quantity + excluded.quantity")
                .executeUpdate()),
            asked(session -> session.createMutationQuery(
                "insert into Stock (place.warehouse, place.shelf, quantity) values ('east', 0, 1) "
                + "on conflict do nothing").executeUpdate()),
            rows("select place.shelf, quantity from Stock where place.warehouse = 'east' order by 1")));
        check("stateless_upsert", () -> {
            factory.inStatelessTransaction(session -> {
                session.upsert(new Shop.Stock("west", 1, 1));
                session.upsert(new Shop.Stock("west", 1, 2));
                session.upsertMultiple(List.of(new Shop.Stock("west", 1, 3), new Shop.Stock("west", 2, 4)));
            });
            return rows("select place.shelf, quantity from Stock where place.warehouse = 'west' order by 1");
        });
        check("stateless_changes", () -> {
            factory.inStatelessTransaction(session -> {
                List<Shop.Stock> rows = new ArrayList<>();
                for (int i = 0; i < 200; i++) {
                    rows.add(new Shop.Stock("bulk", i, i));
                }
                session.insertMultiple(rows);
                rows.forEach(row -> row.quantity *= 2);
                session.updateMultiple(rows);
                session.deleteMultiple(rows.subList(0, 50));
                session.delete(rows.get(60));
            });
            return List.of(rows("select count(*), sum(quantity) from Stock where place.warehouse = 'bulk'"),
                factory.fromStatelessSession(session -> session.get(Shop.Stock.class, new Shop.Place("bulk", 70)).quantity));
        });
        check("soft_delete", () -> {
            done(session -> {
                session.persist(new Shop.Memo(1, "one"));
                session.persist(new Shop.Memo(2, "two"));
            });
            done(session -> session.remove(session.find(Shop.Memo.class, 1)));
            return List.of(rows("select text from Memo"), natively("SELECT id, deleted FROM memo ORDER BY id"));
        });
    }

    private static void locks() {
        check("optimistic_conflict", () -> {
            List<Object> found = failure(() -> done(first -> {
                Shop.Product product = first.find(Shop.Product.class, 30L);
                done(second -> second.find(Shop.Product.class, 30L).name = "second");
                product.name = "first";
            }));
            return List.of(found.get(0), rows("select name, version from Product where id = 30"));
        });
        check("optimistic_conflict_of_deleted_row", () -> List.of(failure(() -> done(first -> {
            Shop.Product product = first.find(Shop.Product.class, 31L);
            done(second -> second.remove(second.find(Shop.Product.class, 31L)));
            first.remove(product);
        })).get(0)));
        check("pessimistic_lock", () -> List.of(
            asked(session -> {
                Shop.Product product = session.find(Shop.Product.class, 32L, LockModeType.PESSIMISTIC_WRITE);
                product.name = "locked";
                return product.version;
            }),
            asked(session -> session.find(Shop.Product.class, 32L, LockModeType.PESSIMISTIC_READ).name),
            asked(session -> session.createSelectionQuery("from Product where id = 32", Shop.Product.class)
                .setLockMode(LockModeType.PESSIMISTIC_WRITE).getSingleResult().version)));
        check("lock_without_waiting", () -> asked(session -> session.createSelectionQuery(
                "from Product where id = 33", Shop.Product.class).setLockMode(LockModeType.PESSIMISTIC_WRITE)
            .setTimeout(0).getSingleResult().version));
        check("skipped_locks", () -> asked(session -> session.createSelectionQuery(
                "from Product where id < 4 order by id", Shop.Product.class)
            .setHibernateLockMode(org.hibernate.LockMode.UPGRADE_SKIPLOCKED).list().size()));
        check("forced_increment", () -> {
            done(session -> session.lock(
                session.find(Shop.Product.class, 34L), LockModeType.PESSIMISTIC_FORCE_INCREMENT));
            done(session -> session.lock(
                session.find(Shop.Product.class, 34L), LockModeType.OPTIMISTIC_FORCE_INCREMENT));
            return rows("select version from Product where id = 34");
        });
    }

    private static void transactions() {
        check("rollback", () -> {
            try (Session session = factory.openSession()) {
                session.beginTransaction();
                session.persist(new Shop.Customer("Nobody", "nobody@example.com"));
                session.createMutationQuery("update Product set price = 0").executeUpdate();
                session.flush();
                long inside = session.createSelectionQuery("from Customer", Shop.Customer.class).getResultCount();
                session.getTransaction().rollback();
                return List.of(inside, rows("select count(*) from Customer where name = 'Nobody'"),
                    rows("select count(*) from Product where price = 0"));
            }
        });
        check("second_session", () -> {
            try (Session first = factory.openSession(); Session second = factory.openSession()) {
                first.beginTransaction();
                first.persist(new Shop.Memo(10, "seen"));
                first.flush();
                List<?> before = rows(second, "select text from Memo where id = 10");
                first.getTransaction().commit();
                return List.of(before, rows(second, "select text from Memo where id = 10"));
            }
        });
        check("savepoint", () -> {
            done(session -> session.doWork(connection -> {
                try (var statement = connection.createStatement()) {
                    statement.executeUpdate("INSERT INTO memo (id, text, deleted) VALUES (20, 'kept', false)");
                    Savepoint savepoint = connection.setSavepoint("here");
                    statement.executeUpdate("INSERT INTO memo (id, text, deleted) VALUES (21, 'undone', false)");
                    connection.rollback(savepoint);
                }
            }));
            return rows("select text from Memo where id >= 20");
        });
        check("transaction_after_failure", () -> {
            failure(() -> done(session -> session.persist(new Shop.Stock("north", 1, 1))));
            return rows("select count(*) from Stock where place.warehouse = 'north'");
        });
        check("repeatable_read", () -> {
            try (Session first = factory.openSession(); Session second = factory.openSession()) {
                first.doWork(c -> c.setTransactionIsolation(java.sql.Connection.TRANSACTION_REPEATABLE_READ));
                first.beginTransaction();
                List<?> before = rows(first, "select text from Memo where id = 30");
                second.beginTransaction();
                second.persist(new Shop.Memo(30, "later"));
                second.getTransaction().commit();
                List<?> after = rows(first, "select text from Memo where id = 30");
                first.getTransaction().commit();
                first.doWork(c -> c.setTransactionIsolation(java.sql.Connection.TRANSACTION_READ_COMMITTED));
                return List.of(before, after, rows(second, "select text from Memo where id = 30"));
            }
        });
    }

    private static void versionsOfSchemas() {
        String columns = "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns "
            + "WHERE table_name = 'note' ORDER BY column_name";
        String indexes = "SELECT indexname FROM pg_indexes WHERE tablename = 'note' ORDER BY indexname";
        check("schema_created", () -> {
            opened("create", Shop.Versions.Earlier.class).close();
            return natively(columns);
        });
        check("schema_without_a_column", () -> failure(() -> opened("validate", Shop.Versions.Later.class).close()));
        check("schema_updated", () -> {
            done(s -> s.createNativeMutationQuery("INSERT INTO note (id, text) VALUES (1, 'old')").executeUpdate());
            opened("update", Shop.Versions.Later.class).close();
            return List.of(natively(columns), natively(indexes),
                natively("SELECT id, text, author, stars FROM note ORDER BY id"));
        });
        check("schema_updated_again", () -> {
            opened("update", Shop.Versions.Later.class).close();
            return List.of(natively(columns), natively(indexes));
        });
        check("schema_valid", () -> {
            opened("validate", Shop.Versions.Later.class).close();
            opened("validate", Shop.ENTITIES).close();
            return true;
        });
        check("schema_of_another_type", () -> failure(() -> opened("validate", Shop.Versions.Wrong.class).close()));
        check("schema_dropped", () -> {
            opened("create-drop", Shop.Versions.Later.class).close();
            return natively(columns);
        });
        check("namespace", () -> {
            try (SessionFactory own = opened("create-drop", Shop.Article.class)) {
                own.inTransaction(session -> {
                    Shop.Article article = new Shop.Article();
                    article.title = "in a schema";
                    session.persist(article);
                });
                return own.fromTransaction(session -> rows(session, "select id, title from Article"));
            }
        });
        check("large_object", () -> {
            try (SessionFactory own = opened("create-drop", Shop.Book.class)) {
                own.inTransaction(session -> {
                    Shop.Book book = new Shop.Book();
                    book.id = 1;
                    book.text = "long ".repeat(10_000);
                    session.persist(book);
                });
                return own.fromTransaction(session -> List.of(session.find(Shop.Book.class, 1).text.length()));
            }
        });
        check("generated_column", () -> {
            try (SessionFactory own = opened("create-drop", Shop.Bill.class)) {
                own.inTransaction(session -> {
                    Shop.Bill bill = new Shop.Bill();
                    bill.id = 1;
                    bill.net = 5;
                    session.persist(bill);
                });
                return own.fromTransaction(session -> List.of(session.find(Shop.Bill.class, 1).gross));
            }
        });
        check("truncated", () -> {
            try (SessionFactory own = opened("none", Shop.Payment.class, Shop.Card.class, Shop.Cash.class)) {
                own.getSchemaManager().truncate();
            }
            return rows("select count(*) from Payment");
        });
    }

    private static void dropped() {
        check("drop", () -> {
            opened("create-drop", Shop.ENTITIES).close();
            factory = opened("none", Shop.Memo.class);
            try {
                return natively("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'");
            } finally {
                factory.close();
            }
        });
    }
}
