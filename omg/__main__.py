"""`python -m omg` is `omg`."""

import sys

from omg.cli import main

if __name__ == "__main__":
    sys.exit(main())
