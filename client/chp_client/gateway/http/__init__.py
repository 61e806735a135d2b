"""HTTP/1.1 on one connection: its bounds, and the requests that need no parser.

protocol     the protocol of uvicorn, bounded
fast_path    a plain GET or PUT, read and answered without a parser and without a task
"""
