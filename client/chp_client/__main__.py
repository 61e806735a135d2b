"""`python -m chp_client` is `chp`; it wants the extra `cli`."""

from .cli import main

main()
