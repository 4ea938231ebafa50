-- The rows of all captures, and their latencies as sketches. Replace the path: a prefix of a bucket that proxies write to
-- (dt=…/hour=…/instance=…/), or a folder with one folder per instance. `hour` is that of arrival: the folders of a bucket
-- have the hour in which rows ended, and are not read as columns.
-- For S3: 's3a://bucket/prefix/dt=2026-11-2*', here of some days, with Hadoop's S3A connector. Hours are those of
-- spark.sql.session.timeZone.
CREATE OR REPLACE TEMPORARY VIEW captures
USING parquet OPTIONS (path 'capture', recursiveFileLookup 'true', pathGlobFilter '*.parquet', mergeSchema 'true');

CREATE OR REPLACE TEMPORARY VIEW requests AS
SELECT * EXCEPT (model, class), coalesce(model, '') AS model, coalesce(class, '{}') AS class, date_trunc('HOUR', time) AS hour,
  regexp_extract(input_file_name(), '(?:instance=)?([^/]+)/[^/]+$', 1) AS instance
FROM captures;

-- Buckets (b^i, b^(i+1)] ns with b = 2^(1/32): `gap_sketch` has them for the gaps, and TTFT is put into the same ones.
CREATE OR REPLACE TEMPORARY VIEW latency_buckets AS
SELECT hour, model, class, instance, 'itl' AS metric, bucket, sum(gaps) AS n
FROM requests LATERAL VIEW explode(gap_sketch) AS bucket, gaps
WHERE outcome = 'success'
GROUP BY hour, model, class, instance, bucket
UNION ALL
SELECT hour, model, class, instance, 'ttft', CAST(ceil(log2(greatest(timing_first_token, 1)) * 32) - 1 AS INT) AS bucket, count(*)
FROM requests
WHERE outcome = 'success' AND stream AND timing_first_token IS NOT NULL
GROUP BY hour, model, class, instance, bucket;
