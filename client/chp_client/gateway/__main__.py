"""`python -m chp_client.gateway` is `chp-gateway`."""

from . import main

main()
