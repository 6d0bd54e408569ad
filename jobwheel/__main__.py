"""`python -m jobwheel`: the same as the console script `jobwheel`, with the current directory on the import path."""

import sys

from jobwheel.cli import main

if __name__ == "__main__":
    sys.exit(main())
