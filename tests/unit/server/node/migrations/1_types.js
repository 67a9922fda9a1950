// A table with a column of each type that knex has.
exports.up = async (knex) => {
  await knex.schema.createTable("kinds", (t) => {
    t.increments("id");
    t.bigInteger("big").defaultTo(9);
    t.integer("whole").unsigned().notNullable().defaultTo(1);
    t.tinyint("tiny");
    t.smallint("small");
    t.mediumint("medium");
    t.text("words");
    t.string("line", 40);
    t.string("unbounded");
    t.float("approx");
    t.double("twice");
    t.decimal("price", 10, 2);
    t.decimal("exact");
    t.boolean("flag").defaultTo(false);
    t.date("day");
    t.datetime("moment");
    t.datetime("digits", { precision: 3 });
    t.timestamp("plain", { useTz: false });
    t.time("hour");
    t.timestamps(true, true);
    t.binary("bytes");
    t.enum("size", ["s", "m", "l"]);
    t.enum("mood", ["sad", "ok", "happy"], { useNative: true, enumName: "mood" });
    t.json("doc");
    t.jsonb("doc_b").defaultTo(JSON.stringify({ a: [1, 2] }));
    t.uuid("ident").defaultTo(knex.fn.uuid());
    t.specificType("numbers", "integer[]");
    t.specificType("labels", "text[]");
    t.comment("one of each");
    t.string("noted").comment("it's a note");
  });
  await knex.schema.createTable("bigs", (t) => {
    t.bigIncrements("id", { primaryKey: false });
    t.uuid("key", { primaryKey: true }).defaultTo(knex.raw("gen_random_uuid()"));
  });
};
exports.down = async (knex) => {
  await knex.schema.dropTable("bigs").dropTable("kinds");
  await knex.raw("DROP TYPE mood");
};
