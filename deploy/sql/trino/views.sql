-- The rows of all captures, and their latencies as sketches, in a catalog of the Hive connector with
-- hive.recursive-directories=true. Replace the location: a prefix of a bucket that proxies write to
-- (dt=…/hour=…/instance=…/; one day of it is 's3://bucket/capture/dt=2026-11-25/'), or a folder with one folder per
-- instance. `hour` is that of arrival: the folders of a bucket have the hour in which rows ended. The table has the columns
-- that the queries need; Trino reads unsigned numbers as signed ones, which changes block ids but not whether they are equal.
CREATE TABLE captures (
  "time" timestamp(3), model varchar, stream boolean, prompt_tokens bigint, prompt_cached bigint, prompt_blocks array(bigint),
  session varchar, status bigint, outcome varchar, output_tokens bigint, timing_first_token bigint, timing_first_tokens bigint,
  gap_ns array(bigint), gap_sketch map(integer, bigint), upstream varchar, class varchar
) WITH (format = 'PARQUET', external_location = 's3://bucket/capture/');

CREATE OR REPLACE VIEW requests AS
SELECT "time", coalesce(model, '') AS model, stream, prompt_tokens, prompt_cached, prompt_blocks, session, status, outcome,
  output_tokens, timing_first_token, timing_first_tokens, gap_ns, gap_sketch, upstream, coalesce(class, '{}') AS class,
  date_trunc('hour', "time") AS hour, regexp_extract("$path", '(?:instance=)?([^/]+)/[^/]+$', 1) AS instance
FROM captures;

-- Buckets (b^i, b^(i+1)] ns with b = 2^(1/32): `gap_sketch` has them for the gaps, and TTFT is put into the same ones.
CREATE OR REPLACE VIEW latency_buckets AS
SELECT hour, model, class, instance, 'itl' AS metric, bucket, sum(gaps) AS n
FROM requests CROSS JOIN UNNEST(gap_sketch) AS sketch (bucket, gaps)
WHERE outcome = 'success'
GROUP BY hour, model, class, instance, bucket
UNION ALL
SELECT hour, model, class, instance, 'ttft', bucket, count(*)
FROM (
  SELECT hour, model, class, instance, CAST(ceil(log2(greatest(timing_first_token, 1)) * 32) - 1 AS integer) AS bucket
  FROM requests
  WHERE outcome = 'success' AND stream AND timing_first_token IS NOT NULL
)
GROUP BY hour, model, class, instance, bucket;
