-- Goodput under the SLO of the first lines, by hour, model and class. A request without a complete answer misses; one
-- that cannot have a TTFT does not count.
WITH slo AS (
  SELECT 500 AS ttft_ms, 50 AS tpot_ms
), judged AS (
  SELECT hour, model, class, outcome = 'success' AS whole,
    stream AND timing_first_token IS NOT NULL AS streamed,
    timing_first_token / 1e6 <= ttft_ms AS ttft_met,
    coalesce(list_sum(gap_ns) / 1e6 / nullif(output_tokens::BIGINT - coalesce(timing_first_tokens, 1)::BIGINT, 0) <= tpot_ms, true)
      AS tpot_met,
    output_tokens
  FROM requests, slo
)
SELECT hour, model, class, count(*) AS counted,
  count(*) FILTER (whole AND ttft_met AND tpot_met) AS met,
  count(*) FILTER (whole AND ttft_met AND tpot_met) / count(*) AS share,
  sum(output_tokens) FILTER (whole AND ttft_met AND tpot_met)::BIGINT AS good_tokens
FROM judged
WHERE streamed OR NOT whole
GROUP BY ALL
ORDER BY ALL;
