-- Prefix reuse by model: blocks that the workload offers (sent before to any pod), that survive routing (sent before to
-- the same pod), and prompt tokens that the engines report as cached. `streamgauge trace reuse` has finite caches too.
-- Requests without a 2xx count nowhere: their engine may have computed nothing.
WITH answered AS (
  SELECT * FROM requests WHERE status IS NULL OR status BETWEEN 200 AND 299
), blocks AS (
  SELECT model, instance, upstream, block FROM answered CROSS JOIN UNNEST(prompt_blocks) AS ids (block)
), of_blocks AS (
  SELECT model, count(*) AS blocks, 1 - count(DISTINCT block) / CAST(count(*) AS double) AS offered,
    1 - count(DISTINCT ROW(instance, upstream, block)) / CAST(count(*) AS double) AS kept_by_routing
  FROM blocks
  GROUP BY model
), of_tokens AS (
  SELECT model, CAST(sum(prompt_cached) AS double) / sum(prompt_tokens) AS cached FROM answered GROUP BY model
)
SELECT model, blocks, offered, kept_by_routing, cached
FROM of_blocks JOIN of_tokens USING (model)
ORDER BY model;
