"""`python -m compfed.cli`."""

import sys

from compfed.cli import main

sys.exit(main())
