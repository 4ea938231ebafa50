-- TTFT and ITL by hour, model, class and instance. Remove a column from `merged` to merge its sketches; each quantile is
-- off by at most 1.09 %.
WITH merged AS (
  SELECT hour, model, class, instance, metric, bucket, sum(n) AS n FROM latency_buckets GROUP BY ALL
), ranked AS (
  SELECT *, sum(n) OVER (PARTITION BY hour, model, class, instance, metric ORDER BY bucket) AS up_to,
    sum(n) OVER (PARTITION BY hour, model, class, instance, metric) AS total, pow(2, (bucket + 0.5e0) / 32) / 1e6 AS ms
  FROM merged
)
SELECT hour, model, class, instance, metric, max(total) AS n,
  min(ms) FILTER (WHERE up_to >= 0.5 * total) AS p50_ms,
  min(ms) FILTER (WHERE up_to >= 0.9 * total) AS p90_ms,
  min(ms) FILTER (WHERE up_to >= 0.99 * total) AS p99_ms
FROM ranked
GROUP BY hour, model, class, instance, metric
ORDER BY hour, model, class, instance, metric;
