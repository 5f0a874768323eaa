"""Shuffles and sorts rows with Spark, whose local directories are on a mount, and checks the result.

    spark_shuffle.py DIR ROWS

Prints the seconds of the shuffle and the MiB that it kept in DIR. Ends with 3 when Spark says that the job failed.
"""

import os
import sys
import time

directory, rows = sys.argv[1], int(sys.argv[2])
os.environ["SPARK_LOCAL_DIRS"] = directory

import pyspark.sql.functions as F
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from py4j.protocol import Py4JJavaError

session = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.shuffle.compress", "false")
    .config("spark.shuffle.spill.compress", "false")
    .config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.shuffle.partitions", "8")
    .getOrCreate()
)
session.sparkContext.setLogLevel("OFF")


def source(count):
    number = F.col("id").cast("string")
    return session.range(0, count, 1, 8).select("id", F.sha2(number, 512).alias("text"), F.xxhash64("id").alias("hash"))


sums = [F.count("*"), F.sum("id"), F.sum(F.crc32("text")), F.sum(F.pmod("hash", F.lit(1000003)))]


def shuffled(count):
    return tuple(source(count).repartition(8, "hash").sortWithinPartitions("text").select(*sums).collect()[0])


try:
    shuffled(rows // 20)
    start = time.monotonic()
    found = shuffled(rows)
    seconds = time.monotonic() - start
except (PySparkException, Py4JJavaError) as error:
    text = str(error)
    reasons = [word for word in ("No space left on device", "Transport endpoint is not connected", "Software caused connection abort") if word in text]
    print(reasons[0] if reasons else text[:500])
    sys.exit(3)
kept = sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(directory) for name in names)
# The same sums without a shuffle: no byte of theirs is in a file.
assert found == tuple(source(rows).select(*sums).collect()[0]), "the shuffle changed the rows"
assert found[:2] == (rows, rows * (rows - 1) // 2), found
session.stop()
assert kept > rows * 130, f"only {kept} bytes in {directory}"
print(f"{seconds:.2f} {kept >> 20}")
