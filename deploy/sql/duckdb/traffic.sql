-- Traffic by hour and class. A class is `class->>'$.NAME'`.
SELECT hour, class, count(*) AS requests, count(DISTINCT session) AS sessions,
  sum(prompt_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
  count(*) FILTER (outcome != 'success') AS incomplete
FROM requests
GROUP BY ALL
ORDER BY ALL;
