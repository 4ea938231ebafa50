-- The rows of all captures, and their latencies as sketches. Replace the path: a prefix of a bucket that proxies write to
-- (dt=…/hour=…/instance=…/), or a folder with one folder per instance. `hour` is that of arrival: the folders of a bucket
-- have the hour in which rows ended, and are not read as columns.
-- For S3: INSTALL httpfs; LOAD httpfs; and 's3://bucket/prefix/dt=2026-11-2*/**/*.parquet', here of some days.
CREATE OR REPLACE VIEW requests AS
SELECT * REPLACE (coalesce(model, '') AS model, coalesce(class, '{}') AS class), date_trunc('hour', time) AS hour,
  regexp_extract(filename, '(?:instance=)?([^/]+)/[^/]+$', 1) AS instance
FROM read_parquet('capture/**/*.parquet', union_by_name => true, filename => true, hive_partitioning => false);

-- Buckets (b^i, b^(i+1)] ns with b = 2^(1/32): `gap_sketch` has them for the gaps, and TTFT is put into the same ones.
CREATE OR REPLACE VIEW latency_buckets AS
SELECT hour, model, class, instance, 'itl' AS metric, e.key AS bucket, sum(e.value)::BIGINT AS n
FROM (
  SELECT hour, model, class, instance, unnest(map_entries(gap_sketch)) AS e
  FROM requests
  WHERE outcome = 'success'
)
GROUP BY ALL
UNION ALL
SELECT hour, model, class, instance, 'ttft', (ceil(log2(greatest(timing_first_token, 1)) * 32) - 1)::INTEGER, count(*)
FROM requests
WHERE outcome = 'success' AND stream AND timing_first_token IS NOT NULL
GROUP BY ALL;
