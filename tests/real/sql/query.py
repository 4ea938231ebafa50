"""Runs the views and queries of deploy/sql on captures; prints the rows of each, as JSON by query.

query.py SQL-FOLDER CAPTURES TTFT_MS TPOT_MS ENGINE [PORT [iceberg]]

With `iceberg` Trino, which has run before, copies the rows into a table of Iceberg, and the queries read that.
"""
import json
import os
import pathlib
import platform
import re
import sys
import tempfile
import time
import zipfile

os.environ["TZ"] = "UTC"
time.tzset()

folder, captures, ttft, tpot, engine = sys.argv[1:6]
scratch = tempfile.TemporaryDirectory()  # until the program ends
QUERIES = ["latency", "latency_by_instance", "goodput", "traffic", "reuse", "cost"]


def replaced(sql, old, new):
    assert old in sql, f"{engine} has no {old}"
    return sql.replace(old, new)


def text(query):
    """A file of the engine, with the changes that its comments tell users to make."""
    sql = pathlib.Path(folder, engine, f"{query.removesuffix('_by_instance')}.sql").read_text()
    if query == "views":
        paths = {"trino": ("s3://bucket/capture/", f"local://{captures}/"), "spark": ("path 'capture'", f"path '{captures}'")}
        sql = replaced(sql, *paths.get(engine, ("'capture/", f"'{captures}/")))
    if query == "goodput":
        sql = replaced(sql, "500 AS ttft_ms, 50 AS tpot_ms", f"{ttft} AS ttft_ms, {tpot} AS tpot_ms")
    if query == "latency_by_instance":
        sql = replaced(sql, "hour, model, class, instance", "instance")
    return sql.strip().removesuffix(";")


def duckdb():
    import duckdb

    connection = duckdb.connect()

    def run(sql):
        result = connection.execute(sql)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row)) for row in result.fetchall()]

    return run


def clickhouse():
    from chdb import session

    connection = session.Session()
    return lambda sql: [json.loads(line) for line in str(connection.query(sql, "JSONEachRow")).splitlines()]


def spark():
    import pyspark
    from pyspark.sql import SparkSession

    # Where musl is installed, Snappy loads the library for musl, whatever libc the machine runs.
    (snappy,) = pathlib.Path(pyspark.__file__).parent.glob("jars/snappy-java-*.jar")
    library = f"org/xerial/snappy/native/Linux/{platform.machine()}/libsnappyjava.so"
    library = pathlib.Path(zipfile.ZipFile(snappy).extract(library, scratch.name))
    settings = {
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dorg.xerial.snappy.lib.path={library.parent} -Dorg.xerial.snappy.lib.name={library.name}",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 4,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    session = SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()
    return lambda sql: [row.asDict() for row in session.sql(sql).collect()]


def trino(catalog="captures"):
    from trino.dbapi import connect

    connection = connect(host="127.0.0.1", port=int(sys.argv[6]), user="tests", catalog=catalog, schema="default")

    def run(sql):
        cursor = connection.cursor()
        found = cursor.execute(sql).fetchall()
        return [dict(zip([column.name for column in cursor.description or []], row)) for row in found]

    run(f"CREATE SCHEMA IF NOT EXISTS {catalog}.default")
    return run


def plain(column, value):
    if column == "hour":
        return str(value)[:13].replace(" ", "T")
    return value if isinstance(value, (int, float, type(None))) else str(value)


def peak():
    """Peak memory of this process in MiB. Spark and Trino are not in it, nor in its CPU time."""
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) >> 10


run = {"duckdb": duckdb, "clickhouse": clickhouse, "spark": spark, "trino": trino}[engine]()
views = text("views").split(";\n")
if sys.argv[7:] == ["iceberg"]:
    for statement in text("iceberg").split(";\n"):
        run(statement)
    run, views = trino("lake"), views[-1:]
for statement in views:
    run(statement)
rows = {}
for query in QUERIES:
    sql = text(query)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # peak memory begins anew
    begun, cpu = time.monotonic(), time.process_time()
    rows[query] = [{column: plain(column, value) for column, value in row.items()} for row in run(sql)]
    took, cpu = time.monotonic() - begun, time.process_time() - cpu
    print(f"{engine} {query}: {took:.2f} s, {cpu:.2f} s of CPU, {peak()} MiB", file=sys.stderr)
print(json.dumps(rows))
