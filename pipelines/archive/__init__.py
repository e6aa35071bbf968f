"""Archives: a stretch of a log as Parquet files that read back record by record, and replays of them."""
