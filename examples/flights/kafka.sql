-- Flights and planes come through Kafka, in Avro with a schema registry. The columns are those of the schemas.

CREATE TABLE planes (*, PRIMARY KEY (plane)) INCLUDE key AS plane
WITH (connector = 'kafka', topic = 'planes', properties.bootstrap.server = '{broker}')
FORMAT UPSERT ENCODE AVRO (schema.registry = '{registry}');

CREATE SOURCE flights (*) INCLUDE partition AS part INCLUDE offset AS place
WITH (connector = 'kafka', topic = 'flights', properties.bootstrap.server = '{broker}')
FORMAT PLAIN ENCODE AVRO (schema.registry = '{registry}');

CREATE TABLE airlines (carrier varchar PRIMARY KEY, name varchar NOT NULL);

-- Each flight with its plane as it is known now: a change of a plane corrects flights that are out already.
CREATE MATERIALIZED VIEW flight_details AS
SELECT f.flight_id, f.carrier, f.tailnum, p.manufacturer, p.seats, f.arr_delay
FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum;

CREATE MATERIALIZED VIEW by_manufacturer AS
SELECT manufacturer, count(*) AS flights, sum(arr_delay) AS minutes FROM flight_details
WHERE manufacturer IS NOT NULL GROUP BY manufacturer;

-- dialect: timeplus
CREATE MATERIALIZED VIEW by_airline AS
SELECT a.name AS airline, count() AS flights, sum(f.arr_delay) AS minutes
FROM flights AS f INNER JOIN airlines AS a ON f.carrier = a.carrier GROUP BY a.name;

-- dialect: sqlstream
CREATE MATERIALIZED VIEW named_flights AS
SELECT f.flight_id, f.dest, f.arr_delay, a.name AS airline FROM flights AS f JOIN airlines AS a ON f.carrier = a.carrier;

-- dialect: risingwave
-- What goes out: corrected flights to a compacted topic, named flights to files of Parquet.
CREATE SINK details_out FROM flight_details
WITH (connector = 'kafka', topic = 'flight-details', properties.bootstrap.server = '{broker}', primary_key = 'flight_id')
FORMAT UPSERT ENCODE JSON;

CREATE SINK files_out FROM named_flights
WITH (connector = 'posix_fs', posix_fs.root = '{files}', type = 'append-only', force_append_only = 'true')
FORMAT PLAIN ENCODE PARQUET;
