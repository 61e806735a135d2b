"""The parts that all requests of one gateway share: rows, writes on their way, the order of keys, fan-out, the pair."""
