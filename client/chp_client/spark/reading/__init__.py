"""The readers behind `spark.read` and `readStream` of format("chp"): snapshot, changes, stream and topic."""
