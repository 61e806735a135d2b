"""What is held: the state that records change, the latest records, whose history it is; images of it at one number;
and what a journal is (`journal`), which stores implement.

They know nothing of the server but each other. Pure.
"""
