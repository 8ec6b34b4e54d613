"""`python -m compfed`: the command line, where its script is not on the path."""

import sys

from compfed.cli import main

sys.exit(main())
