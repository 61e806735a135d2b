"""What an application holds: `Clone`, `AsyncClone` and what they hand out (leases, views, checks).

They run in the application's threads, write to `agent/mailbox.py`, and read the maps that the agent's thread changes.
"""
