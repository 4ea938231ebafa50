-- Prefix reuse by model: blocks that the workload offers (sent before to any pod), that survive routing (sent before to
-- the same pod), and prompt tokens that the engines report as cached. `streamgauge trace reuse` has finite caches too.
-- Requests without a 2xx count nowhere: their engine may have computed nothing.
WITH answered AS (
  SELECT * FROM requests WHERE status IS NULL OR status BETWEEN 200 AND 299
), blocks AS (
  SELECT model, instance, upstream, unnest(prompt_blocks) AS block FROM answered
), cached AS (
  SELECT model, sum(prompt_cached) / sum(prompt_tokens) AS cached FROM answered GROUP BY ALL
)
SELECT model, count(*) AS blocks,
  1 - count(DISTINCT block) / count(*) AS offered,
  1 - count(DISTINCT (instance, upstream, block)) / count(*) AS kept_by_routing,
  any_value(cached.cached) AS cached
FROM blocks JOIN cached USING (model)
GROUP BY model
ORDER BY model;
