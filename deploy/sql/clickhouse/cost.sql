-- Cost of a million output tokens by hour and model, from the price of a GPU hour and the GPUs of an instance.
WITH 2.5 AS gpu_hour, 1 AS gpus_per_instance
SELECT hour, model, uniqExact(instance) AS instances, sum(output_tokens) AS output_tokens,
  instances * gpus_per_instance * gpu_hour AS cost, cost / output_tokens * 1e6 AS cost_per_million
FROM requests
GROUP BY hour, model
ORDER BY hour, model;
