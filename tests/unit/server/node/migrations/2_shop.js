// Tables with keys, references, checks and indexes.
exports.up = (knex) =>
  knex.schema
    .createTable("customers", (t) => {
      t.increments();
      t.string("name").notNullable();
      t.string("email").unique();
      t.integer("points").notNullable().defaultTo(0).checkPositive("points_positive");
      t.jsonb("settings");
      t.timestamp("joined").defaultTo(knex.fn.now());
    })
    .createTable("products", (t) => {
      t.string("sku", 20).primary();
      t.string("title").notNullable().index();
      t.decimal("price", 10, 2).notNullable().checkBetween([0, 1000]);
      t.integer("stock").defaultTo(0);
      t.check("?? >= 0 or ?? = ?", ["stock", "sku", "none"], "stock_known");
    })
    .createTable("orders", (t) => {
      t.bigIncrements();
      t.integer("customer_id").unsigned().notNullable();
      t.foreign("customer_id").references("customers.id").onDelete("CASCADE");
      t.enum("status", ["open", "paid", "sent"]).notNullable().defaultTo("open");
      t.timestamp("placed").notNullable();
      t.text("remark");
      t.index(["customer_id", "placed"], "orders_by_customer");
    })
    .createTable("lines", (t) => {
      t.bigInteger("order_id").notNullable().references("orders.id").onDelete("CASCADE");
      t.string("sku", 20).notNullable().references("sku").inTable("products").onDelete("RESTRICT");
      t.smallint("amount").notNullable().checkIn(["1", "2", "3", "4", "5"]);
      t.primary(["order_id", "sku"]);
    });
exports.down = (knex) =>
  knex.schema.dropTable("lines").dropTable("orders").dropTableIfExists("products").dropTable("customers");
