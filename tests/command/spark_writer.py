"""Writes the same rows with Spark in several ways, for table_spark_test.py: spark_writer.py FOLDER. Needs pyspark."""

import datetime
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ROWS = 300


def rows_of(spark):
    number = f.col("id")
    return spark.range(ROWS).select(
        number,
        f.when(number % 10 == 0, None).otherwise(number % 5).cast("int").alias("holes"),
        f.element_at(f.array(f.lit("DE"), f.lit("FR"), f.lit("IT")), (number % 3 + 1).cast("int")).alias("land"),
        (number % 4 / 4).cast("decimal(9,2)").alias("price"),
        f.array((number % 2).cast("float"), f.lit(1.0).cast("float")).alias("pair"),
        f.timestamp_seconds(number * 3600).alias("at"),
        f.date_add(f.lit(datetime.date(1970, 1, 1)), (number % 30).cast("int")).alias("day"),
        (number % 2 == 0).alias("flag"),
        (2023 + number % 3).cast("int").alias("year"),
        f.when(number % 2 == 0, "yes").otherwise("no").alias("y"))


def main():
    settings = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
                "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows, folder = rows_of(spark), sys.argv[1]
    rows.repartition(2).write.parquet(f"{folder}/plain")
    rows.repartition(2).write.option("compression", "zstd").parquet(f"{folder}/zstd")
    rows.repartition(3).write.partitionBy("year", "land").parquet(f"{folder}/partitioned")
    rows.drop("pair").repartition(2).write.csv(f"{folder}/text", header=True, compression="gzip")
    spark.stop()


main()
