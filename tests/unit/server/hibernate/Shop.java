import jakarta.persistence.*;
import java.io.Serializable;
import java.math.BigDecimal;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import org.hibernate.annotations.Array;
import org.hibernate.annotations.Check;
import org.hibernate.annotations.ColumnDefault;
import org.hibernate.annotations.Comment;
import org.hibernate.annotations.CreationTimestamp;
import org.hibernate.annotations.DynamicUpdate;
import org.hibernate.annotations.Formula;
import org.hibernate.annotations.Generated;
import org.hibernate.annotations.GeneratedColumn;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.annotations.NaturalId;
import org.hibernate.annotations.OnDelete;
import org.hibernate.annotations.OnDeleteAction;
import org.hibernate.annotations.SoftDelete;
import org.hibernate.annotations.View;
import org.hibernate.type.SqlTypes;

/** The entities of a shop: the kinds of keys, columns and associations that programs map. */
public class Shop {
    enum Status { NEW, ACTIVE, CLOSED }

    enum Size { SMALL, MEDIUM, LARGE }

    @Embeddable
    static class Address {
        @Column(length = 60)
        String street;
        @Column(length = 40)
        String city;

        Address() {}

        Address(String street, String city) {
            this.street = street;
            this.city = city;
        }
    }

    @Entity(name = "Customer")
    @Table(
        name = "customer",
        indexes = @Index(name = "customer_by_city", columnList = "city, name"),
        uniqueConstraints = @UniqueConstraint(name = "customer_email", columnNames = "email"))
    @Comment("who buys")
    @DynamicUpdate
    static class Customer {
        @Id
        @GeneratedValue(strategy = GenerationType.IDENTITY)
        Long id;
        @Version
        int version;
        @Column(nullable = false, length = 40)
        @Comment("as on the bill")
        String name;
        @Column(length = 80)
        String email;
        @Enumerated(EnumType.STRING)
        @Column(length = 10)
        Status status = Status.NEW;
        @Enumerated(EnumType.ORDINAL)
        Size size;
        LocalDate born;
        @Embedded
        Address address;
        @ElementCollection
        @CollectionTable(name = "customer_tag")
        @Column(name = "tag", length = 20)
        Set<String> tags = new TreeSet<>();
        @ElementCollection
        @CollectionTable(name = "customer_phone")
        @MapKeyColumn(name = "kind", length = 10)
        @Column(name = "number", length = 20)
        Map<String, String> phones = new TreeMap<>();
        @OneToMany(mappedBy = "customer", cascade = CascadeType.ALL, orphanRemoval = true)
        @OrderBy("id")
        List<Purchase> purchases = new ArrayList<>();
        @Formula("(SELECT count(*) FROM purchase p WHERE p.customer_id = id)")
        long purchased;

        Customer() {}

        Customer(String name, String email) {
            this.name = name;
            this.email = email;
        }

        Purchase buys(Product product, int amount) {
            Purchase purchase = new Purchase();
            purchase.customer = this;
            purchase.product = product;
            purchase.amount = amount;
            purchases.add(purchase);
            return purchase;
        }
    }

    @Entity(name = "Product")
    @Table(name = "product")
    @Check(name = "product_price", constraints = "price >= 0")
    static class Product {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE, generator = "product_ids")
        @SequenceGenerator(name = "product_ids", sequenceName = "product_ids", allocationSize = 50)
        Long id;
        @Version
        int version;
        @NaturalId
        @Column(nullable = false, length = 20)
        String code;
        @Column(length = 80)
        String name;
        @Column(precision = 12, scale = 2)
        BigDecimal price;
        @Column(length = 100)
        byte[] picture;
        @Column(length = 100_000)
        String description;
        @JdbcTypeCode(SqlTypes.JSON)
        Map<String, Object> attributes;
        String[] labels;
        @Array(length = 10)
        List<Integer> sizes;
        @ManyToMany
        @JoinTable(
            name = "product_category",
            joinColumns = @JoinColumn(name = "product_id"),
            inverseJoinColumns = @JoinColumn(name = "category_id"))
        @OrderBy("name")
        List<Category> categories = new ArrayList<>();

        Product() {}

        Product(String code, String price) {
            this.code = code;
            this.name = "product " + code;
            this.price = new BigDecimal(price);
        }
    }

    @Entity(name = "Category")
    @Table(name = "category")
    static class Category {
        @Id
        @GeneratedValue(strategy = GenerationType.TABLE, generator = "category_ids")
        @TableGenerator(name = "category_ids", table = "generated_ids", allocationSize = 5)
        Integer id;
        @Column(length = 30)
        String name;
        @ManyToOne(fetch = FetchType.LAZY)
        @OnDelete(action = OnDeleteAction.CASCADE)
        Category parent;

        Category() {}

        Category(String name, Category parent) {
            this.name = name;
            this.parent = parent;
        }
    }

    @Entity(name = "Purchase")
    @Table(name = "purchase", indexes = @Index(columnList = "customer_id"))
    static class Purchase {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE)
        Long id;
        @ManyToOne(fetch = FetchType.LAZY, optional = false)
        Customer customer;
        @ManyToOne(fetch = FetchType.LAZY)
        Product product;
        int amount;
        @CreationTimestamp
        Instant made;
        @ColumnDefault("7")
        @Generated
        Integer priority;
    }

    @Embeddable
    static class Place implements Serializable {
        @Column(length = 8)
        String warehouse;
        int shelf;

        Place() {}

        Place(String warehouse, int shelf) {
            this.warehouse = warehouse;
            this.shelf = shelf;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Place place && place.warehouse.equals(warehouse) && place.shelf == shelf;
        }

        @Override
        public int hashCode() {
            return warehouse.hashCode() + shelf;
        }
    }

    @Entity(name = "Stock")
    @Table(name = "stock")
    static class Stock {
        @EmbeddedId
        Place place;
        int quantity;

        Stock() {}

        Stock(String warehouse, int shelf, int quantity) {
            this.place = new Place(warehouse, shelf);
            this.quantity = quantity;
        }
    }

    @Entity(name = "Visit")
    @Table(name = "visit")
    static class Visit {
        @Id
        @GeneratedValue(strategy = GenerationType.UUID)
        UUID id;
        LocalDate day;
        LocalDateTime clock;
        OffsetDateTime zoned;
        Instant moment;
        LocalTime hour;
        Duration lasted;
        @JdbcTypeCode(SqlTypes.NAMED_ENUM)
        Size size;
        Double measured;
        Float rough;
        Short small;
        Byte tiny;
        Boolean paid;
        Character letter;
        UUID other;
        @Column(precision = 30, scale = 10)
        BigDecimal exact;
    }

    @Entity(name = "Payment")
    @Table(name = "payment")
    @Inheritance(strategy = InheritanceType.SINGLE_TABLE)
    @DiscriminatorColumn(name = "kind", length = 10)
    abstract static class Payment {
        @Id
        @GeneratedValue(strategy = GenerationType.IDENTITY)
        Integer id;
        @Column(precision = 10, scale = 2)
        BigDecimal amount;
    }

    @Entity(name = "Card")
    @DiscriminatorValue("card")
    static class Card extends Payment {
        @Column(length = 20)
        String number;
    }

    @Entity(name = "Cash")
    @DiscriminatorValue("cash")
    static class Cash extends Payment {
        Integer coins;
    }

    @Entity(name = "Vehicle")
    @Table(name = "vehicle")
    @Inheritance(strategy = InheritanceType.JOINED)
    abstract static class Vehicle {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE)
        Long id;
        @Column(length = 20)
        String plate;
    }

    @Entity(name = "Car")
    @Table(name = "car")
    static class Car extends Vehicle {
        int seats;
    }

    @Entity(name = "Truck")
    @Table(name = "truck")
    static class Truck extends Vehicle {
        @Column(precision = 6, scale = 1)
        BigDecimal load;
    }

    @Entity(name = "Memo")
    @Table(name = "memo")
    @SoftDelete
    static class Memo {
        @Id
        Integer id;
        @Column(length = 40)
        String text;

        Memo() {}

        Memo(int id, String text) {
            this.id = id;
            this.text = text;
        }
    }

    @Entity(name = "Sales")
    @Table(name = "sales")
    @View(query = "SELECT customer_id AS customer, sum(amount) AS amount FROM purchase GROUP BY customer_id")
    static class Sales {
        @Id
        Long customer;
        Long amount;
    }

    static final Class<?>[] ENTITIES = {
        Customer.class, Product.class, Category.class, Purchase.class, Stock.class, Visit.class, Payment.class,
        Card.class, Cash.class, Vehicle.class, Car.class, Truck.class, Memo.class, Sales.class,
    };

    /** A table as an earlier and a later version of a program map it. */
    static class Versions {
        @Entity(name = "Note")
        @Table(name = "note")
        static class Earlier {
            @Id
            Integer id;
            @Column(length = 40)
            String text;
        }

        @Entity(name = "Note")
        @Table(name = "note", indexes = @Index(name = "note_by_author", columnList = "author"))
        static class Later {
            @Id
            Integer id;
            @Column(length = 40)
            String text;
            @Column(length = 20, unique = true)
            String author;
            @ColumnDefault("3")
            @Column(nullable = false)
            Integer stars;
            @ManyToOne
            Later parent;
        }

        @Entity(name = "Note")
        @Table(name = "note")
        static class Wrong {
            @Id
            Integer id;
            LocalDate text;
        }
    }

    @Entity(name = "Article")
    @Table(name = "article", schema = "library")
    static class Article {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE)
        Long id;
        @Column(length = 40)
        String title;
    }

    @Entity(name = "Book")
    @Table(name = "book")
    static class Book {
        @Id
        Integer id;
        @Lob
        String text;
    }

    @Entity(name = "Bill")
    @Table(name = "bill")
    static class Bill {
        @Id
        Integer id;
        int net;
        @GeneratedColumn("net * 2")
        int gross;
    }
}
