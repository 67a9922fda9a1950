// Migrations of knex up, down and up again, seeds, and queries of its builder. Prints the answer to each question, as
// JSON by its name. DATABASE: how to connect, in JSON.
const config = { client: "pg", connection: JSON.parse(process.env.DATABASE), pool: { min: 1, max: 4 } };
const knex = require("knex")({
  ...config,
  migrations: { directory: `${__dirname}/migrations` },
  log: { warn() {}, deprecate() {} },
  seeds: { directory: `${__dirname}/seeds` },
});

const day = (value) => value && value.toISOString();
// PostgreSQL 18 has a code of its own for RESTRICT.
const failure = (promise) =>
  promise.then(
    () => "nothing failed",
    (error) => [error.code === "23001" ? "23503" : error.code, error.constraint, error.table, error.column].map((part) => part ?? null),
  );

const columns = async (table) => {
  const found = await knex(table).columnInfo();
  return Object.fromEntries(
    Object.entries(found)
      .filter(([name]) => name !== "mood") // an enum
      .map(([name, c]) => [name, [c.type, c.maxLength, c.nullable, c.defaultValue && "default"]]),
  );
};

const questions = {
  async migrations() {
    const all = async (answer) => (await answer)[1].map((path) => path.split("/").pop());
    const up = await all(knex.migrate.latest());
    const down = await all(knex.migrate.rollback({}, true));
    const gone = await knex.schema.hasTable("orders");
    const one = await all(knex.migrate.up());
    const back = await all(knex.migrate.down());
    const again = await all(knex.migrate.latest());
    const [done, open] = await knex.migrate.list();
    return [up, down, gone, one, back, again, done.length, open.length, await knex.migrate.currentVersion()];
  },
  async a_failed_migration_leaves_nothing() {
    const source = {
      getMigrations: async () => ["1_types.js", "2_shop.js", "3_alter.js", "4_fails.js"],
      getMigrationName: (name) => name,
      getMigration: (name) =>
        name === "4_fails.js"
          ? {
              up: async (k) => {
                await k.schema.createTable("half", (t) => t.increments());
                await k("half").insert({ id: 1 });
                await k.schema.alterTable("nowhere", (t) => t.string("x"));
              },
              down: async () => {},
            }
          : require(`./migrations/${name}`),
    };
    const failed = await failure(knex.migrate.latest({ migrationSource: source }));
    return [failed[0], await knex.schema.hasTable("half"), (await knex.migrate.list())[0].length];
  },
  schema: async () => [
    await columns("kinds"),
    await columns("orders"),
    await columns("products"),
    await knex.schema.hasTable("items"),
    await knex.schema.hasTable("lines"),
    await knex.schema.hasColumn("products", "maker"),
    await knex.schema.withSchema("archive").hasTable("notes"),
  ],
  async values() {
    const [row] = await knex("kinds")
      .insert({
        big: "9007199254740993",
        whole: 2,
        tiny: 3,
        small: -4,
        medium: 5,
        words: "ü 'quoted'",
        line: "line",
        unbounded: "x".repeat(255),
        approx: 1.5,
        twice: 0.1,
        price: "12.345",
        exact: "1.25",
        flag: true,
        day: "2024-02-29",
        moment: new Date(1e12),
        digits: "2024-01-01T00:00:00.123456Z",
        plain: "2024-01-01 10:00:00.5",
        hour: "12:30:01.25",
        bytes: Buffer.from([0, 255, 10]),
        size: "m",
        mood: "happy",
        doc: JSON.stringify({ b: 1, a: [true, null] }),
        ident: "0189d5c8-7f5c-7ca0-8f4d-2f6d2b0f3a11",
        numbers: [3, 1, 2],
        labels: ["a", "b,c", null],
        noted: null,
      })
      .returning("*");
    const { created_at, updated_at, bytes, id, ...rest } = row;
    const made = [await knex("bigs").insert({}, "*"), await knex("bigs").insert({}, "*")].flat();
    return [
      rest,
      bytes.toString("hex"),
      created_at instanceof Date && +created_at === +updated_at,
      made.map((r) => [r.id, r.key.length]),
      await failure(knex("kinds").insert({ line: "x".repeat(41) })),
      await failure(knex("kinds").insert({ size: "xl" })),
      await failure(knex("kinds").insert({ mood: "xl" })),
      await knex("kinds").where("mood", ">", "sad").pluck("mood"),
      await knex("kinds").whereJsonPath("doc_b", "$.a[0]", "=", 1).count("* as n"),
      await knex("kinds").select(knex.raw("numbers[1] as one, ?? as two", ["labels"])),
    ];
  },
  async seeds() {
    await knex.seed.run();
    await knex.seed.run();
    return Promise.all(["customers", "products", "orders", "items"].map((name) => knex(name).count("* as n").first()));
  },
  async filters() {
    const found = await knex("orders")
      .join("customers as c", "c.id", "orders.customer_id")
      .whereIn("status", ["open", "paid"])
      .andWhere("placed", ">=", new Date(Date.UTC(2024, 0, 31)))
      .whereNot((b) => b.where("c.name", "ilike", "ANN").orWhereNull("c.name"))
      .orderBy("placed", "desc")
      .select("status", "placed", "c.name");
    const others = await knex("orders")
      .whereBetween("placed", [new Date(Date.UTC(2024, 1, 1)), new Date(Date.UTC(2024, 3, 1))])
      .orWhereRaw("remark like ?", ["%1"])
      .orderBy([{ column: "remark", order: "asc", nulls: "last" }, "placed"])
      .limit(4)
      .offset(1)
      .select("remark", { at: "placed" });
    return [found.map((r) => [r.status, day(r.placed), r.name]), others.map((r) => [r.remark, day(r.at)])];
  },
  joins: async () => [
    await knex("customers")
      .leftJoin("orders as o", (j) => j.on("o.customer_id", "customers.id").andOnVal("o.status", "=", "paid"))
      .groupBy("customers.name")
      .count({ n: "o.id" })
      .max({ last: "o.placed" })
      .select("customers.name")
      .orderBy("customers.name")
      .then((rows) => rows.map((r) => [r.name, r.n, day(r.last)])),
    await knex("products").whereExists(knex("items").whereRaw("items.sku = products.sku").where("amount", 5)).pluck("sku"),
    await knex("products").whereNotIn("sku", knex("items").select("sku").where("amount", ">", 3)).pluck("sku"),
    await knex.from("orders").crossJoin("products").count().first(),
    await knex("paid").orderBy("order").pluck("name"),
  ],
  aggregates: async () => [
    await knex("items").sum("amount").select(knex.raw("round(avg(amount), 6) as a")).min("amount").max("amount").countDistinct("sku as d").first(),
    await knex("items").select("sku").sum("amount as s").groupBy("sku").havingRaw("sum(amount) > ?", [15]).orderBy("s").orderBy("sku"),
    await knex("orders").distinct("status").orderBy("status"),
    await knex("orders").distinctOn("customer_id").orderBy(["customer_id", { column: "placed", order: "desc" }]).pluck("status"),
  ],
  windows: async () =>
    knex("items")
      .select("sku", "amount")
      .rank("r", (w) => w.partitionBy("sku").orderBy("amount", "desc"))
      .rowNumber("n", (w) => w.orderBy(["amount", "order_id", "sku"]))
      .orderBy("n")
      .limit(6),
  common_tables: async () => [
    await knex
      .with("dear", knex("products").where("price", ">", 15))
      .withMaterialized("sold", knex("items").select("sku").sum("amount as s").groupBy("sku"))
      .from("dear")
      .join("sold", "sold.sku", "dear.sku")
      .orderBy("dear.sku")
      .select("dear.sku", "s"),
    await knex
      .withRecursive("counted", ["n"], (q) =>
        q.from(knex.raw("generate_series(1, 2) as g(n)")).select("n").unionAll((u) => u.select(knex.raw("n + 2")).from("counted").where("n", "<", 5)),
      )
      .from("counted")
      .sum("n as s")
      .first(),
    await knex("orders").select("status").union(knex("customers").select("name")).orderBy("status"),
    await knex("orders").select("status").except(knex("orders").select("status").where("status", "open")).orderBy("status"),
    await knex("orders").select("status").intersect([knex("paid").select(knex.raw("'paid'"))]),
  ],
  json: async () => [
    await knex("customers").whereJsonSupersetOf("settings", { n: 1 }).pluck("name"),
    await knex("customers").whereJsonSubsetOf("settings", { n: 1, tags: ["Bob", "x"], deep: { x: 1 } }).pluck("name"),
    await knex("customers").jsonExtract("settings", "$.deep.x", "x").orderBy("name").select("name"),
    await knex("customers").jsonSet("settings", "$.n", 9, "changed").where("name", "Cat"),
    await knex("customers").jsonRemove("settings", "$.tags", "less").where("name", "Cat"),
    await knex("customers").whereJsonObject("settings", { n: 0, tags: ["Ann"], deep: { x: 0 } }).pluck("name"),
  ],
  async updates() {
    const changed = await knex("customers").where("name", "Bob").update({ points: knex.raw("points + 5") }, ["points"]);
    const more = await knex("customers").increment({ points: 2 }).decrement("points", 1);
    const from = await knex("orders")
      .update({ remark: knex.ref("c.name") })
      .updateFrom("customers as c")
      .whereRaw("c.id = orders.customer_id")
      .where("status", "sent")
      .returning(["remark"]);
    const gone = await knex("items").where("amount", 5).del(["sku"]);
    return [changed, more, from, gone.length, await knex("customers").orderBy("name").pluck("points")];
  },
  async conflicts() {
    const row = { sku: "p1", title: "Other", price: 1 };
    return [
      await knex("products").insert(row).onConflict("sku").ignore().returning("sku"),
      await knex("products").insert(row).onConflict("sku").merge(["price"]).returning(["sku", "title", "price"]),
      await knex("products").insert([{ ...row, price: 2 }, { sku: "p7", title: "New", price: 3 }]).onConflict("sku").merge().returning("*"),
      await knex("products").insert(row).onConflict("sku").merge({ title: knex.raw("excluded.title || '!'") }).where("products.price", ">", 1).returning("title"),
      await knex("products").insert({ ...row, sku: "p8" }).onConflict().ignore(),
    ].map((answer) => answer.rowCount ?? answer);
  },
  constraints: async () => [
    await failure(knex("products").insert({ sku: "p1", title: "x", price: 1 })),
    await failure(knex("products").insert({ sku: "p9", title: "Product 3", price: 1 })),
    await failure(knex("products").insert({ sku: "p9", title: "x", price: -1 })),
    await failure(knex("products").insert({ sku: "p9", title: "x", price: 1, in_stock: -1 })),
    await failure(knex("products").insert({ sku: "p9", price: 1 })),
    await failure(knex("products").insert({ sku: "x".repeat(21), title: "x", price: 1 })),
    await failure(knex("items").insert({ order_id: 1e9, sku: "p1", amount: 1 })),
    await failure(knex("orders").insert({ customer_id: 1, status: "lost", placed: new Date(0) })),
    await failure(knex("products").where("sku", "p1").del()),
    await failure(knex("nowhere").select()),
    await failure(knex("products").select("nothing")),
  ],
  async transactions() {
    const kept = await knex.transaction(async (trx) => {
      await trx("customers").insert({ name: "Dan", email: "dan@shop.test" });
      const inner = await failure(trx.transaction(async (t) => t("customers").insert({ name: "Eve", email: "dan@shop.test" })));
      await trx("customers").where({ name: "Dan" }).forUpdate().first();
      return inner;
    });
    const undone = await failure(
      knex.transaction(async (trx) => {
        await trx("customers").where({ name: "Dan" }).update({ name: "Dora" });
        await trx("customers").insert({ email: "x" });
      }),
    );
    const serial = await knex.transaction((trx) => trx("customers").count("* as n").first(), {
      isolationLevel: "repeatable read",
      readOnly: true,
    });
    return [kept, undone, serial, await knex("customers").where("name", "like", "D%").pluck("name")];
  },
  async streams() {
    const found = [];
    for await (const row of knex("orders").orderBy("placed").select("placed").stream()) found.push(day(row.placed));
    return found;
  },
  async deletions() {
    const gone = await knex("customers").where("name", "Cat").del();
    await knex.schema.refreshMaterializedView("sales");
    return [gone, await knex("orders").count("* as n"), await knex("items").count("* as n"), await knex("sales").orderBy("sku")];
  },
};

(async () => {
  const answers = {};
  for (const [name, question] of Object.entries(questions)) {
    answers[name] = await question().catch((error) => `${error.name} ${error.code}: ${error.message}`);
  }
  await knex.destroy();
  process.stdout.write(JSON.stringify(answers, null, 1));
})();
