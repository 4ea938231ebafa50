-- Traffic by hour and class. A class is json_extract_scalar(class, '$.NAME').
SELECT hour, class, count(*) AS requests, count(DISTINCT session) AS sessions, sum(prompt_tokens) AS input_tokens,
  sum(output_tokens) AS output_tokens, count_if(outcome != 'success') AS incomplete
FROM requests
GROUP BY hour, class
ORDER BY hour, class;
