-- Prefix reuse by model: blocks that the workload offers (sent before to any pod), that survive routing (sent before to
-- the same pod), and prompt tokens that the engines report as cached. `streamgauge trace reuse` has finite caches too.
-- Requests without a 2xx count nowhere: their engine may have computed nothing.
WITH answered AS (
  SELECT model, instance, upstream, prompt_blocks, prompt_cached, prompt_tokens
  FROM requests
  WHERE status IS NULL OR status BETWEEN 200 AND 299
)
SELECT model, blocks, offered, kept_by_routing, cached
FROM (
  SELECT model, count() AS blocks, 1 - uniqExact(block) / count() AS offered,
    1 - uniqExact(instance, upstream, block) / count() AS kept_by_routing
  FROM answered
  ARRAY JOIN prompt_blocks AS block
  GROUP BY model
) AS of_blocks
JOIN (SELECT model, sum(prompt_cached) / sum(prompt_tokens) AS cached FROM answered GROUP BY model) AS of_tokens USING (model)
ORDER BY model;
