exports.seed = async (knex) => {
  await knex("items").del();
  await knex("orders").del();
  await knex("products").truncate().catch(() => knex("products").del());
  await knex("customers").del();
  const made = await knex("customers").insert(
    ["Ann", "Bob", "Cat"].map((name, i) => ({
      name,
      email: `${name.toLowerCase()}@shop.test`,
      points: i,
      settings: JSON.stringify({ n: i, tags: [name], deep: { x: i } }),
      joined: new Date(Date.UTC(2024, 0, i + 1)),
    })),
    ["id"],
  );
  const products = [0, 1, 2, 3].map((i) => ({ sku: `p${i}`, title: `Product ${i}`, price: 9.9 * (i + 1), in_stock: i }));
  await knex.batchInsert("products", products, 3);
  const orders = [...Array(12).keys()].map((i) => ({
    customer_id: made[i % 3].id,
    status: ["open", "paid", "sent"][i % 3],
    placed: new Date(Date.UTC(2024, 0, 1 + 17 * i, 12)),
    remark: i % 2 ? `remark ${i}` : null,
  }));
  const ids = await knex("orders").insert(orders).returning("id");
  await knex("items").insert(
    ids.flatMap(({ id }, i) => [0, 1].map((j) => ({ order_id: id, sku: `p${(i + j) % 4}`, amount: ((i + j) % 5) + 1 }))),
  );
};
