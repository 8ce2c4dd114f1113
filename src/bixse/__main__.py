"""The entry point of `python -m bixse`, `torchrun -m bixse` and `accelerate launch -m bixse`."""

import sys

from bixse.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
