"""The command `python -m chp_client`, which is `chp`. It needs the extra `cli`."""

from .cli import main

main()
