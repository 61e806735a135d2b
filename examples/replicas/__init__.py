"""A demo of replicas: readers that choose among two, while a replica and the active server are killed."""
