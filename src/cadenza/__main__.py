"""`python -m cadenza`."""

import sys

from cadenza.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
