"""``python -m clusterctl``."""

import sys

from clusterctl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
