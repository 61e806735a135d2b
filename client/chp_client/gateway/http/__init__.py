"""HTTP/1.1 of one connection: its bounds, and what is done without a parser.

protocol    uvicorn's, bounded        plain    one whole plain request, read without a parser
"""
