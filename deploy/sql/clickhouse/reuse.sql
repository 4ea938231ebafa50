-- Prefix reuse by model: blocks that the workload offers (sent before to any pod), that survive routing (sent before to
-- the same pod), and prompt tokens that the engines report as cached. `streamgauge trace reuse` has finite caches too.
SELECT model, blocks, offered, kept_by_routing, cached
FROM (
  SELECT model, count() AS blocks, 1 - uniqExact(block) / count() AS offered,
    1 - uniqExact(instance, upstream, block) / count() AS kept_by_routing
  FROM requests
  ARRAY JOIN prompt_blocks AS block
  GROUP BY model
) AS of_blocks
JOIN (SELECT model, sum(prompt_cached) / sum(prompt_tokens) AS cached FROM requests GROUP BY model) AS of_tokens USING (model)
ORDER BY model;
