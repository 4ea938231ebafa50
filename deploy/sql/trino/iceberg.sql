-- The rows as a table of Iceberg, in a catalog `lake` of the Iceberg connector. Run it after views.sql, then the last
-- statement of views.sql again in the schema lake.default: there the queries read the table.
CREATE SCHEMA IF NOT EXISTS lake.default;

CREATE TABLE IF NOT EXISTS lake.default.requests WITH (partitioning = ARRAY['day(hour)', 'instance']) AS
SELECT * FROM captures.default.requests WITH NO DATA;

-- Once per hour, for the hour before. Replace the times, here all.
INSERT INTO lake.default.requests
SELECT * FROM captures.default.requests WHERE "time" >= TIMESTAMP '1970-01-01 00:00' AND "time" < TIMESTAMP '9999-01-01 00:00';
