"""``python -m fastadv``: the same as ``fastadv``."""

import sys

from fastadv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
