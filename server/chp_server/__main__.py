"""`python -m chp_server` is `chp-server`."""

import sys

from .main import main

sys.exit(main())
