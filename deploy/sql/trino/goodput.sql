-- Goodput under the SLO of the first lines, by hour, model and class. A request without a complete answer misses; one
-- that cannot have a TTFT does not count.
WITH slo AS (
  SELECT 500 AS ttft_ms, 50 AS tpot_ms
), judged AS (
  SELECT hour, model, class, outcome = 'success' AS whole,
    stream AND timing_first_token IS NOT NULL AS streamed,
    timing_first_token / 1e6 <= ttft_ms AS ttft_met,
    coalesce(reduce(gap_ns, 0e0, (sum, gap) -> sum + gap, sum -> sum) / 1e6
      / nullif(output_tokens - coalesce(timing_first_tokens, 1), 0) <= tpot_ms, true) AS tpot_met,
    output_tokens
  FROM requests CROSS JOIN slo
)
SELECT hour, model, class, count(*) AS counted,
  count_if(whole AND ttft_met AND tpot_met) AS met,
  count_if(whole AND ttft_met AND tpot_met) / CAST(count(*) AS double) AS share,
  sum(output_tokens) FILTER (WHERE whole AND ttft_met AND tpot_met) AS good_tokens
FROM judged
WHERE streamed OR NOT whole
GROUP BY hour, model, class
ORDER BY hour, model, class;
