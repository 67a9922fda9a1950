-- dialect: sqlstream
-- A card network: what each card spends within an hour, which authorizations are settled, and what looks like fraud.
CREATE OR REPLACE SCHEMA "cards" DESCRIPTION 'authorizations and settlements of a card network';
SET SCHEMA '"cards"';
SET PATH '"cards"';

-- What arrives.
CREATE OR REPLACE SERVER "files" TYPE 'FILE' FOREIGN DATA WRAPPER ECDA;

CREATE OR REPLACE FOREIGN STREAM "authorizations_in" (
    "ts" TIMESTAMP,
    "id" BIGINT,
    "card" VARCHAR(16),
    "merchant" INTEGER,
    "amount" DECIMAL(10, 2)
) SERVER "files" OPTIONS (
    "DIRECTORY" 'data', "FILENAME_PATTERN" 'authorizations-.*\.csv', "PARSER" 'CSV', "SEPARATOR" ',',
    "CHARACTER_ENCODING" 'UTF-8', "SKIP_HEADER" 'true', "STATIC_FILES" 'true'
) DESCRIPTION 'one file for each day or so, in time order';

CREATE OR REPLACE FOREIGN STREAM "settlements_in" ("ts" TIMESTAMP, "id" BIGINT, "paid" DECIMAL(10, 2))
SERVER "files" OPTIONS (
    "DIRECTORY" 'data', "FILENAME_PATTERN" 'settlements-.*\.csv', "PARSER" 'CSV', "SEPARATOR" ',',
    "CHARACTER_ENCODING" 'UTF-8', "SKIP_HEADER" 'true', "STATIC_FILES" 'true'
);

CREATE OR REPLACE TABLE "cities" ("code" INTEGER PRIMARY KEY, "city" VARCHAR(20), "limit" DECIMAL(10, 2));
INSERT INTO "cities" VALUES (0, 'Oslo', 900), (1, 'Lima', 500), (2, 'Pune', 400), (3, 'Kyiv', 400), (4, 'Bonn', 800);

-- Streams with the time of the event as ROWTIME.
CREATE OR REPLACE STREAM "authorizations" (
    "id" BIGINT, "card" VARCHAR(16), "merchant" INTEGER, "amount" DECIMAL(10, 2)
) DESCRIPTION 'authorizations by the time of the terminal';

CREATE OR REPLACE STREAM "settlements" ("id" BIGINT, "paid" DECIMAL(10, 2));

CREATE OR REPLACE PUMP "authorizations_pump" STOPPED AS
INSERT INTO "authorizations" (ROWTIME, "id", "card", "merchant", "amount")
SELECT STREAM "ts" AS ROWTIME, "id", "card", "merchant", "amount" FROM "authorizations_in";

CREATE OR REPLACE PUMP "settlements_pump" STOPPED AS
INSERT INTO "settlements" (ROWTIME, "id", "paid")
SELECT STREAM "ts" AS ROWTIME, "id", "paid" FROM "settlements_in";

-- How risky an authorization is, by what its card did in the hour before it.
CREATE OR REPLACE FUNCTION "risk" ("spent" DECIMAL(10, 2), "times" BIGINT) RETURNS VARCHAR(6)
    CONTAINS SQL
    RETURN CASE WHEN "spent" > 1500 OR "times" > 6 THEN 'high' WHEN "spent" > 900 THEN 'medium' ELSE 'low' END;

CREATE OR REPLACE VIEW "spending" AS
SELECT STREAM a."id", a."card", a."merchant", a."amount",
    SUM(a."amount") OVER "hour" AS "spent",
    COUNT(*) OVER "hour" AS "times",
    MAX(a."amount") OVER "hour" AS "largest",
    FIRST_VALUE(a."merchant") OVER "hour" AS "first_merchant"
FROM "authorizations" AS a
WINDOW "hour" AS (PARTITION BY a."card" RANGE INTERVAL '1' HOUR PRECEDING);

CREATE OR REPLACE VIEW "rated" AS
SELECT STREAM s."id", s."card", s."merchant", s."spent", s."times", "risk"(s."spent", s."times") AS "risk"
FROM "spending" AS s;

-- The amount that the same card paid last.
CREATE OR REPLACE VIEW "changes" AS
SELECT STREAM a."id", a."card", a."amount",
    LAG(a."amount", 1) OVER (PARTITION BY a."card" ROWS 1 PRECEDING) AS "before"
FROM "authorizations" AS a;

-- Settled within ten minutes, or not.
CREATE OR REPLACE VIEW "settled" AS
SELECT STREAM a."id", a."amount", s."paid"
FROM "authorizations" OVER (RANGE INTERVAL '10' MINUTE PRECEDING) AS a
LEFT JOIN "settlements" AS s ON a."id" = s."id";

-- Each hour of each city, with its limit.
CREATE OR REPLACE VIEW "hourly" AS
SELECT STREAM FLOOR(a.ROWTIME TO HOUR) AS "hour", MOD(a."merchant", 5) AS "code", COUNT(*) AS "authorizations",
    SUM(a."amount") AS "total"
FROM "authorizations" AS a
GROUP BY FLOOR(a.ROWTIME TO HOUR), MOD(a."merchant", 5);

CREATE OR REPLACE VIEW "hourly_by_city" AS
SELECT STREAM h."hour", c."city", h."authorizations", h."total"
FROM "hourly" AS h JOIN "cities" AS c ON h."code" = c."code";

-- What leaves: stored results, and alerts as files.
CREATE OR REPLACE MATERIALIZED VIEW "rated_results" AS SELECT STREAM * FROM "rated";
CREATE OR REPLACE MATERIALIZED VIEW "change_results" AS SELECT STREAM * FROM "changes";
CREATE OR REPLACE MATERIALIZED VIEW "settled_results" AS SELECT STREAM * FROM "settled";
CREATE OR REPLACE MATERIALIZED VIEW "hourly_results" AS SELECT STREAM * FROM "hourly_by_city";

CREATE OR REPLACE STREAM "alerts" ("id" BIGINT, "card" VARCHAR(16), "reason" VARCHAR(80));

CREATE OR REPLACE PUMP "alerts_pump" STOPPED AS
INSERT INTO "alerts" ("id", "card", "reason")
SELECT STREAM r."id", r."card", UPPER(r."risk") || ': ' || INITCAP('spent ') || CAST(CAST(r."spent" AS DECIMAL(10, 2)) AS VARCHAR(12))
FROM "rated" AS r WHERE r."risk" = 'high';

CREATE OR REPLACE FOREIGN STREAM "alerts_out" ("id" BIGINT, "card" VARCHAR(16), "reason" VARCHAR(80))
SERVER "files" OPTIONS (
    "DIRECTORY" 'alerts', "FORMATTER" 'CSV', "WRITE_HEADER" 'true', "CHARACTER_ENCODING" 'UTF-8',
    "FILENAME_PREFIX" 'alerts-', "FILENAME_SUFFIX" '.csv', "FILE_ROTATION_TIME" '1d'
);

CREATE OR REPLACE PUMP "alerts_out_pump" STOPPED AS
INSERT INTO "alerts_out" SELECT STREAM "id", "card", "reason" FROM "alerts";

EXPLAIN PLAN FOR SELECT STREAM * FROM "settled";
ALTER PUMP "cards".* START;
