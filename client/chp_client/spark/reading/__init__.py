"""What `spark.read` and `readStream` of format("chp") do: a snapshot, the changes between two numbers, a stream."""
