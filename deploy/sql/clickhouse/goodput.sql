-- Goodput under the SLO of the first lines, by hour, model and class. A request without a complete answer misses; one
-- that cannot have a TTFT does not count.
WITH 500 AS ttft_ms, 50 AS tpot_ms,
  outcome = 'success' AS whole,
  stream AND timing_first_token IS NOT NULL AS streamed,
  whole AND timing_first_token / 1e6 <= ttft_ms
    AND ifNull(arraySum(gap_ns) / 1e6 / nullIf(toInt64(output_tokens) - toInt64(ifNull(timing_first_tokens, 1)), 0) <= tpot_ms, 1)
    AS is_met
SELECT hour, model, class, count() AS counted, countIf(is_met) AS met, met / counted AS share,
  sumIf(output_tokens, is_met) AS good_tokens
FROM requests
WHERE streamed OR NOT ifNull(whole, 0)
GROUP BY hour, model, class
ORDER BY hour, model, class;
