-- TTFT and ITL by hour, model, class and instance. Remove a column from `merged` to merge its sketches; each quantile is
-- off by at most 1.09 %.
WITH merged AS (
  SELECT hour, model, class, instance, metric, bucket, sum(n) AS n FROM latency_buckets GROUP BY ALL
), ranked AS (
  SELECT *, sum(n) OVER (of_group ORDER BY bucket) AS up_to, sum(n) OVER of_group AS total
  FROM merged
  WINDOW of_group AS (PARTITION BY hour, model, class, instance, metric)
), estimated AS (
  SELECT *, pow(2, (bucket + 0.5) / 32) / 1e6 AS ms FROM ranked
)
SELECT hour, model, class, instance, metric, max(total)::BIGINT AS n,
  min(ms) FILTER (up_to >= 0.5 * total) AS p50_ms,
  min(ms) FILTER (up_to >= 0.9 * total) AS p90_ms,
  min(ms) FILTER (up_to >= 0.99 * total) AS p99_ms
FROM estimated
GROUP BY hour, model, class, instance, metric
ORDER BY ALL;
