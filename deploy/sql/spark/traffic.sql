-- Traffic by hour and class. A class is get_json_object(class, '$.NAME').
SELECT hour, class, count(*) AS requests, count(DISTINCT session) AS sessions,
  CAST(sum(prompt_tokens) AS BIGINT) AS input_tokens, CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
  count_if(outcome != 'success') AS incomplete
FROM requests
GROUP BY hour, class
ORDER BY hour, class;
