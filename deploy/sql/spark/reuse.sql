-- Prefix reuse by model: blocks that the workload offers (sent before to any pod), that survive routing (sent before to
-- the same pod), and prompt tokens that the engines report as cached. `streamgauge trace reuse` has finite caches too.
-- Requests without a 2xx count nowhere: their engine may have computed nothing.
WITH answered AS (
  SELECT * FROM requests WHERE status IS NULL OR status BETWEEN 200 AND 299
), blocks AS (
  SELECT model, instance, upstream, explode(prompt_blocks) AS block FROM answered
), of_blocks AS (
  SELECT model, count(*) AS blocks, 1 - count(DISTINCT block) / count(*) AS offered,
    1 - count(DISTINCT struct(instance, upstream, block)) / count(*) AS kept_by_routing
  FROM blocks
  GROUP BY model
), of_tokens AS (
  SELECT model, CAST(sum(prompt_cached) AS DOUBLE) / nullif(sum(prompt_tokens), 0) AS cached FROM answered GROUP BY model
)
SELECT model, blocks, offered, kept_by_routing, cached
FROM of_blocks JOIN of_tokens USING (model)
ORDER BY model;
