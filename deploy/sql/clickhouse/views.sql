-- The rows of all captures, and their latencies as sketches. Replace the path: a prefix of a bucket that proxies write to
-- (dt=…/hour=…/instance=…/), or a folder with one folder per instance. `hour` is that of arrival: the folders of a bucket
-- have the hour in which rows ended, and are not read as columns.
-- For S3: s3('https://bucket.s3.amazonaws.com/prefix/dt=2026-11-2*/**/*.parquet', 'Parquet'), here of some days.
CREATE OR REPLACE VIEW requests AS
SELECT * REPLACE (ifNull(model, '') AS model, ifNull(class, '{}') AS class), toStartOfHour(time) AS hour,
  extract(_path, '(?:instance=)?([^/]+)/[^/]+$') AS instance
FROM file('capture/**/*.parquet', 'Parquet')
SETTINGS use_hive_partitioning = 0;

-- Buckets (b^i, b^(i+1)] ns with b = 2^(1/32): `gap_sketch` has them for the gaps, and TTFT is put into the same ones.
CREATE OR REPLACE VIEW latency_buckets AS
SELECT hour, model, class, instance, 'itl' AS metric, bucket, sum(gaps) AS n
FROM requests
ARRAY JOIN mapKeys(gap_sketch) AS bucket, mapValues(gap_sketch) AS gaps
WHERE outcome = 'success'
GROUP BY ALL
UNION ALL
SELECT hour, model, class, instance, 'ttft', toInt32(ceil(log2(greatest(assumeNotNull(timing_first_token), 1)) * 32) - 1) AS bucket,
  toInt64(count()) AS n
FROM requests
WHERE outcome = 'success' AND stream AND timing_first_token IS NOT NULL
GROUP BY ALL;
