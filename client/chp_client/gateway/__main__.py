"""The command `python -m chp_client.gateway`, which is `chp-gateway`."""

from . import main

main()
