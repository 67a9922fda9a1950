// Models of Sequelize, migrations by its query interface under Umzug, and queries. Prints the answer to each question,
// as JSON by its name. DATABASE: how to connect, in JSON.
const { DataTypes, Op, QueryTypes, Sequelize, Transaction, fn, col, literal, where, json } = require("sequelize");
const { SequelizeStorage, Umzug } = require("umzug");

const { user, password, database, options, ...rest } = JSON.parse(process.env.DATABASE);
const sequelize = new Sequelize(database, user, password ?? null, {
  ...rest,
  dialect: "postgres",
  logging: false,
  dialectOptions: { options },
  pool: { max: 3 },
});

const day = (value) => value && new Date(value).toISOString();
const plain = (found) => JSON.parse(JSON.stringify(found));
const failure = (promise) =>
  promise.then(
    () => "nothing failed",
    // PostgreSQL 18 has a code of its own for RESTRICT.
    (error) => [error.name, error.original?.code === "23001" ? "23503" : (error.original?.code ?? null)],
  );

const Customer = sequelize.define(
  "customer",
  {
    name: { type: DataTypes.STRING(40), allowNull: false, validate: { len: [1, 40] } },
    email: { type: DataTypes.STRING, unique: true },
    points: { type: DataTypes.INTEGER, defaultValue: 0 },
    settings: DataTypes.JSONB,
    tags: DataTypes.ARRAY(DataTypes.STRING),
  },
  { paranoid: true, version: true },
);
const Product = sequelize.define(
  "product",
  {
    sku: { type: DataTypes.STRING(20), primaryKey: true },
    title: { type: DataTypes.TEXT, allowNull: false },
    price: { type: DataTypes.DECIMAL(10, 2), allowNull: false },
  },
  { timestamps: false, indexes: [{ fields: ["title"] }, { name: "by_price", fields: ["price", "sku"] }] },
);
const Order = sequelize.define(
  "order",
  {
    id: { type: DataTypes.UUID, primaryKey: true, defaultValue: DataTypes.UUIDV4 },
    number: { type: DataTypes.BIGINT, autoIncrement: true },
    status: { type: DataTypes.ENUM("open", "paid", "sent"), defaultValue: "open" },
    placed: DataTypes.DATE,
    shipped: DataTypes.DATEONLY,
    weight: DataTypes.DOUBLE,
    gift: { type: DataTypes.BOOLEAN, allowNull: false, defaultValue: false },
    photo: DataTypes.BLOB,
    at: DataTypes.TIME,
  },
  { timestamps: false },
);
const Line = sequelize.define("line", { amount: { type: DataTypes.SMALLINT, allowNull: false } }, { timestamps: false });
Customer.hasMany(Order, { onDelete: "CASCADE", foreignKey: { allowNull: false } });
Order.belongsTo(Customer);
Order.belongsToMany(Product, { through: Line });
Product.belongsToMany(Order, { through: Line });
Product.belongsTo(Product, { as: "parent" });

const changes = [
  {
    name: "1_create",
    up: async ({ context: query }) => {
      await query.createTable("notes", {
        id: { type: DataTypes.INTEGER, primaryKey: true, autoIncrement: true },
        text: { type: DataTypes.STRING, allowNull: false, defaultValue: "none", comment: "the text" },
        owner: { type: DataTypes.INTEGER, references: { model: "customers", key: "id" }, onDelete: "SET NULL" },
        createdAt: { type: DataTypes.DATE, defaultValue: Sequelize.fn("now") },
        kind: DataTypes.ENUM("a", "b"),
      });
      await query.addIndex("notes", ["text"], { name: "notes_text" });
      await query.bulkInsert("notes", [{ text: "one" }, { text: "two", kind: "b" }]);
    },
    down: ({ context: query }) => query.dropTable("notes"),
  },
  {
    name: "2_alter",
    up: async ({ context: query }) => {
      await query.addColumn("notes", "rank", { type: DataTypes.INTEGER, defaultValue: 3, allowNull: false });
      await query.changeColumn("notes", "text", { type: DataTypes.STRING(100), allowNull: true, defaultValue: "some" });
      await query.changeColumn("notes", "rank", { type: DataTypes.BIGINT, allowNull: true });
      await query.renameColumn("notes", "rank", "place");
      await query.addConstraint("notes", { fields: ["place"], type: "check", where: { place: { [Op.gte]: 0 } }, name: "place_known" });
      await query.addConstraint("notes", { fields: ["text", "place"], type: "unique", name: "one_place" });
      await query.removeIndex("notes", "notes_text");
      await query.renameTable("notes", "memos");
      await query.bulkUpdate("memos", { place: 4 }, { text: "one" });
    },
    down: async ({ context: query }) => {
      await query.renameTable("memos", "notes");
      await query.removeConstraint("notes", "one_place");
      await query.removeConstraint("notes", "place_known");
      await query.removeColumn("notes", "place");
      await query.addIndex("notes", ["text"], { name: "notes_text" });
    },
  },
];

const questions = {
  async sync() {
    await sequelize.sync({ force: true });
    await sequelize.sync();
    await Customer.sync({ alter: true });
    await Product.sync({ alter: true });
    return (await sequelize.getQueryInterface().showAllTables()).map((t) => t.tableName ?? t).sort();
  },
  async migrations() {
    const query = sequelize.getQueryInterface();
    const umzug = new Umzug({ migrations: changes, context: query, storage: new SequelizeStorage({ sequelize }) });
    const names = (list) => list.map((m) => m.name);
    const up = names(await umzug.up());
    const rows = await sequelize.query("SELECT id, text, place, kind FROM memos ORDER BY id", { type: QueryTypes.SELECT });
    const indexes = (await query.showIndex("memos")).map((i) => [i.name, i.unique, i.primary]).sort();
    const down = names(await umzug.down({ to: 0 }));
    const again = names(await umzug.up());
    const described = Object.entries(await query.describeTable("memos"))
      .filter(([name]) => name !== "kind") // an enum
      .map(([name, c]) => [name, c.type, c.allowNull, c.primaryKey, c.comment]);
    return [up, rows, indexes, down, again, names(await umzug.pending()), described];
  },
  async fill() {
    const customers = await Customer.bulkCreate(
      ["Ann", "Bob", "Cat"].map((name, i) => ({
        name,
        email: `${name.toLowerCase()}@shop.test`,
        settings: { n: i, deep: { x: [i, i + 1] } },
        tags: [name, "all"],
      })),
    );
    await Product.bulkCreate([0, 1, 2, 3].map((i) => ({ sku: `p${i}`, title: `Product ${i}`, price: 9.9 * (i + 1) })));
    for (let i = 0; i < 9; i++) {
      const order = await Order.create({
        status: ["open", "paid", "sent"][i % 3],
        placed: new Date(Date.UTC(2024, 0, 1 + 17 * i, 12, 0, 0, 250)),
        shipped: `2024-02-0${i + 1}`,
        weight: i / 4,
        gift: i % 2 === 0,
        photo: Buffer.from([0, i, 255]),
        at: "12:30:00",
        customerId: customers[i % 3].id,
      });
      await order.addProducts(await Product.findAll({ where: { sku: [`p${i % 4}`, `p${(i + 1) % 4}`] } }), {
        through: { amount: (i % 3) + 1 },
      });
    }
    return [customers.map((c) => c.id), await Order.count(), await Line.count()];
  },
  async values() {
    const order = await Order.findOne({ where: { number: 2 } });
    const { id, placed, photo, ...others } = order.get();
    return [id.length, day(placed), photo.toString("hex"), others];
  },
  async filters() {
    const found = await Order.findAll({
      where: {
        status: { [Op.in]: ["open", "paid"] },
        placed: { [Op.between]: [new Date(Date.UTC(2024, 0, 10)), new Date(Date.UTC(2024, 4, 1))] },
        [Op.or]: [{ gift: true }, { weight: { [Op.gt]: 1 } }],
      },
      order: [["placed", "DESC"]],
      limit: 3,
      offset: 1,
    });
    return [
      found.map((o) => [o.number, o.status]),
      await Customer.count({ where: { name: { [Op.iLike]: "%A%" } } }),
      await Customer.count({ where: { email: { [Op.startsWith]: "b" }, name: { [Op.regexp]: "^B" } } }),
      await Customer.count({ where: { tags: { [Op.contains]: ["Ann"] } } }),
      await Customer.count({ where: { tags: { [Op.overlap]: ["Bob", "Cat"] } } }),
      await Customer.count({ where: where(fn("lower", col("name")), "ann") }),
      await Order.count({ where: { status: { [Op.not]: null, [Op.ne]: "sent" }, shipped: { [Op.lt]: "2024-02-05" } } }),
    ];
  },
  json: async () => [
    await Customer.count({ where: { "settings.n": 1 } }),
    await Customer.count({ where: { settings: { [Op.contains]: { n: 2 } } } }),
    plain(await Customer.findAll({ attributes: ["name", [json("settings.deep.x"), "x"]], order: [[json("settings.n"), "DESC"]] })),
  ],
  async associations() {
    const found = await Customer.findAll({
      include: [{ model: Order, where: { status: "paid" }, required: false, include: [{ model: Product, through: { attributes: ["amount"] } }] }],
      order: ["name", [Order, "number"], [Order, Product, "sku"]],
    });
    const page = await Customer.findAndCountAll({ include: Order, limit: 2, order: ["name", [Order, "number"]], distinct: true });
    const product = await Product.findByPk("p1", { include: { all: true } });
    const ann = await Customer.findOne({ where: { name: "Ann" } });
    return [
      found.map((c) => [c.name, c.orders.map((o) => [o.number, o.products.map((p) => [p.sku, p.line.amount])])]),
      page.count,
      page.rows.map((c) => [c.name, c.orders.length]),
      product.orders.length,
      await ann.countOrders(),
      await ann.hasOrder((await ann.getOrders({ limit: 1 }))[0]),
      (await Order.findAll({ where: { "$customer.name$": "Cat" }, include: Customer })).length,
    ];
  },
  aggregates: async () => [
    await Line.sum("amount"),
    await Product.max("price"),
    plain(await Order.findAll({ attributes: ["status", [fn("count", col("id")), "n"]], group: "status", order: ["status"], having: literal("count(id) > 1") })),
    plain(await Order.count({ group: ["gift"], attributes: ["gift"] })).sort((a, b) => a.gift - b.gift),
    await Order.aggregate("customerId", "count", { distinct: true }),
  ],
  async updates() {
    const bob = await Customer.findOne({ where: { name: "Bob" } });
    bob.points = 7;
    bob.settings = { ...bob.settings, more: null };
    await bob.save();
    await bob.increment({ points: 2 });
    await bob.reload();
    const stale = await Customer.findByPk(bob.id);
    await bob.update({ name: "Bobby" });
    const late = await failure(stale.update({ name: "Rob" }));
    const [n, rows] = await Order.update({ weight: literal("weight * 2") }, { where: { status: "sent" }, returning: ["number", "weight"] });
    return [bob.points, bob.version, bob.settings, late, n, rows.map((o) => [o.number, o.weight]).sort()];
  },
  async upserts() {
    const [made, isNew] = await Product.upsert({ sku: "p1", title: "Other", price: 5 });
    const several = await Product.bulkCreate(
      [
        { sku: "p2", title: "Changed", price: 1 },
        { sku: "p8", title: "New", price: 2 },
      ],
      { updateOnDuplicate: ["title"], returning: true },
    );
    await Product.bulkCreate([{ sku: "p8", title: "Ignored", price: 2 }], { ignoreDuplicates: true });
    const [first, created] = await Customer.findCreateFind({ where: { name: "Dan" }, defaults: { email: "dan@shop.test" } });
    const [, again] = await Customer.findCreateFind({ where: { name: "Dan" } });
    return [plain(made), isNew, plain(several), created, again, first.points, plain(await Product.findByPk("p8"))];
  },
  async find_or_create() {
    const [first, created] = await Customer.findOrCreate({ where: { name: "Flo" }, defaults: { email: "flo@shop.test" } });
    const [, again] = await Customer.findOrCreate({ where: { name: "Flo" } });
    return [first.name, created, again];
  },
  async transactions() {
    const kept = await sequelize.transaction(async (t) => {
      const dan = await Customer.findOne({ where: { name: "Dan" }, transaction: t, lock: t.LOCK.UPDATE });
      await dan.update({ points: 3 }, { transaction: t });
      return (await Customer.findByPk(dan.id, { transaction: t })).points;
    });
    const undone = await failure(
      sequelize.transaction({ isolationLevel: Transaction.ISOLATION_LEVELS.REPEATABLE_READ }, async (t) => {
        await Customer.create({ name: "Gone" }, { transaction: t });
        await Customer.create({ name: "Ann", email: "ann@shop.test" }, { transaction: t });
      }),
    );
    const nested = await sequelize.transaction(async (t) => {
      await Customer.create({ name: "Eve" }, { transaction: t });
      const inner = await failure(
        sequelize.transaction({ transaction: t }, async (s) => {
          await Customer.create({ name: "Fay", email: "ann@shop.test" }, { transaction: s });
        }),
      );
      return [inner, await Customer.count({ transaction: t, where: { name: ["Eve", "Fay"] } })];
    });
    return [kept, undone, nested, await Customer.count({ where: { name: "Gone" } })];
  },
  constraints: async () => [
    await failure(Customer.create({ email: "ann@shop.test", name: "x" })),
    await failure(Customer.create({ name: "" })),
    await failure(Product.create({ sku: "p1", title: "x", price: 1 })),
    await failure(Product.create({ sku: "x".repeat(21), title: "x", price: 1 })),
    await failure(sequelize.query("INSERT INTO products (sku, price) VALUES ('p9', 1)")),
    await failure(Order.create({ customerId: 1e6 })),
    await failure(sequelize.query("INSERT INTO orders (id, status, \"customerId\") VALUES (gen_random_uuid(), 'lost', 1)")),
    await failure(sequelize.query("SELECT nothing FROM products")),
  ],
  raw: async () => [
    await sequelize.query("SELECT sku, price FROM products WHERE price > :least ORDER BY sku", { replacements: { least: 10 }, type: QueryTypes.SELECT }),
    await sequelize.query("SELECT $1::int + 1 AS n, $2 AS text", { bind: [4, "x"], type: QueryTypes.SELECT }),
    (await sequelize.query("UPDATE products SET price = price + 1 WHERE sku = 'p0'"))[1].rowCount,
  ],
  async deletions() {
    const cat = await Customer.findOne({ where: { name: "Cat" } });
    await cat.destroy();
    const hidden = await Customer.count({ where: { name: "Cat" } });
    await cat.restore();
    const shown = await Customer.count({ where: { name: "Cat" } });
    await cat.destroy({ force: true });
    const gone = await Line.destroy({ where: { amount: 1 } });
    await Line.truncate();
    return [hidden, shown, await Order.count(), gone, await Line.count()];
  },
};

(async () => {
  const answers = {};
  for (const [name, question] of Object.entries(questions)) {
    answers[name] = await question().catch((error) => `${error.name}: ${error.message} ${error.sql ?? ""}`);
  }
  await sequelize.close();
  process.stdout.write(JSON.stringify(answers, null, 1));
})();
