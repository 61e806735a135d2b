"""The recorder and the replayer of `chp record` and `chp replay`, and the Parquet files that both know."""
