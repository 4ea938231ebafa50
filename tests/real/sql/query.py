"""Runs the views and queries of deploy/sql on captures; prints the rows of each, as JSON by engine and query.

sql.py ENGINE SQL-FOLDER CAPTURES
"""
import json
import pathlib
import sys

engine, folder, captures = sys.argv[1:]
QUERIES = ["latency", "goodput", "traffic", "reuse", "cost"]


def text(name):
    sql = pathlib.Path(folder, engine, f"{name}.sql").read_text()
    assert name != "views" or "'capture/*/*.parquet'" in sql
    sql = sql.replace("capture/*/*.parquet", f"{captures}/*/*.parquet")
    return sql.replace("500 AS ttft_ms, 50 AS tpot_ms", "60 AS ttft_ms, 15 AS tpot_ms")


def plain(value):
    return value if isinstance(value, (int, float, type(None))) else str(value)


rows = {}
if engine == "duckdb":
    import duckdb

    connection = duckdb.connect()
    connection.execute(text("views"))
    for query in QUERIES:
        result = connection.execute(text(query))
        names = [column[0] for column in result.description]
        rows[query] = [dict(zip(names, map(plain, row))) for row in result.fetchall()]
else:
    from chdb import session

    connection = session.Session()
    for statement in filter(str.strip, text("views").split(";\n")):
        connection.query(statement)
    for query in QUERIES:
        settings = " SETTINGS output_format_json_quote_64bit_integers = 0"
        result = connection.query(text(query).rstrip().rstrip(";") + settings, "JSONEachRow")
        rows[query] = [json.loads(line) for line in str(result).splitlines()]
print(json.dumps(rows))
