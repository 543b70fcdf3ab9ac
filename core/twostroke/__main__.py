"""`python -m twostroke` is the `twostroke` command."""

import sys

from twostroke.cli import main

if __name__ == "__main__":
    sys.exit(main())
