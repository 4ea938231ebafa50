-- Traffic by hour and class. A class is JSONExtractString(class, 'NAME').
SELECT hour, class, count() AS requests, uniqExact(session) AS sessions, sum(prompt_tokens) AS input_tokens,
  sum(output_tokens) AS output_tokens, countIf(outcome != 'success') AS incomplete
FROM requests
GROUP BY hour, class
ORDER BY hour, class;
