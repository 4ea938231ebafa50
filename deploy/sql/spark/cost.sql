-- Cost of a million output tokens by hour and model, from the price of a GPU hour and the GPUs of an instance.
WITH price AS (
  SELECT 2.5e0 AS gpu_hour, 1 AS gpus_per_instance
), busy AS (
  SELECT hour, model, count(DISTINCT instance) AS instances, CAST(sum(output_tokens) AS BIGINT) AS output_tokens
  FROM requests
  GROUP BY hour, model
)
SELECT hour, model, instances, output_tokens, instances * gpus_per_instance * gpu_hour AS cost,
  instances * gpus_per_instance * gpu_hour / nullif(output_tokens, 0) * 1e6 AS cost_per_million
FROM busy CROSS JOIN price
ORDER BY hour, model;
