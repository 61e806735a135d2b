"""`python -m chp_client.cli` is `chp`."""

from . import main

main()
