"""What runs the core: the loop (`reactor`), copies, the arbiter, metrics, looking at memory and disk.

Everything here may touch clocks, threads and files; nothing here decides what is said or kept.
"""
