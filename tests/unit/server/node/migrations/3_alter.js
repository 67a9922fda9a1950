// Each change that knex can make to a table.
exports.up = async (knex) => {
  await knex.schema.alterTable("products", (t) => {
    t.string("maker", 30).defaultTo("unknown");
    t.renameColumn("stock", "in_stock");
    t.dropIndex("title");
    t.unique(["title", "maker"], { indexName: "one_title" });
    t.string("title", 100).notNullable().alter();
    t.decimal("price", 12, 3).notNullable().alter();
  });
  await knex.schema.alterTable("customers", (t) => {
    t.setNullable("name");
    t.dropNullable("name");
    t.dropChecks(["points_positive"]);
    t.integer("points").defaultTo(5).notNullable().alter();
    t.bigInteger("points").defaultTo(5).notNullable().alter({ alterNullable: false });
    t.dropUnique(["email"]);
    t.unique(["email"], { useConstraint: true });
    t.integer("parent").references("id").inTable("customers").withKeyName("parent_of");
  });
  await knex.schema.alterTable("orders", (t) => {
    t.dropForeign("customer_id");
    t.foreign("customer_id", "of_customer").references("id").inTable("customers").onDelete("CASCADE");
    t.dropIndex([], "orders_by_customer");
    t.index(["placed"]);
    t.timestamps();
  });
  await knex.schema.alterTable("orders", (t) => t.dropTimestamps());
  await knex.schema.renameTable("lines", "items");
  await knex.schema.alterTable("items", (t) => {
    t.dropPrimary("lines_pkey");
    t.primary(["order_id", "sku"], { constraintName: "items_key" });
  });
  await knex.schema.createView("paid", (v) => {
    v.columns(["order", "name"]);
    v.as(
      knex("orders")
        .join("customers", "customers.id", "orders.customer_id")
        .select("orders.id", "customers.name")
        .where("status", "paid"),
    );
  });
  await knex.schema.createMaterializedView("sales", (v) =>
    v.as(knex("items").select("sku").sum({ amount: "amount" }).groupBy("sku")),
  );
  await knex.schema.createSchema("archive");
  await knex.schema.withSchema("archive").createTable("notes", (t) => {
    t.increments();
    t.text("note");
  });
};
exports.down = async (knex) => {
  await knex.schema.withSchema("archive").dropTable("notes");
  await knex.schema.dropSchema("archive");
  await knex.schema.dropMaterializedView("sales");
  await knex.schema.dropView("paid");
  await knex.schema.alterTable("items", (t) => {
    t.dropPrimary("items_key");
    t.primary(["order_id", "sku"], { constraintName: "lines_pkey" });
  });
  await knex.schema.renameTable("items", "lines");
  await knex.schema.alterTable("orders", (t) => {
    t.dropIndex(["placed"]);
    t.dropForeign("customer_id", "of_customer");
    t.foreign("customer_id").references("customers.id").onDelete("CASCADE");
    t.index(["customer_id", "placed"], "orders_by_customer");
  });
  await knex.schema.alterTable("customers", (t) => {
    t.dropForeign([], "parent_of");
    t.dropColumn("parent");
    t.integer("points").defaultTo(0).notNullable().alter();
    t.dropUnique(["email"]);
    t.unique(["email"]);
  });
  await knex.schema.alterTable("products", (t) => {
    t.dropUnique([], "one_title");
    t.dropColumns("maker");
    t.renameColumn("in_stock", "stock");
    t.index("title");
  });
};
