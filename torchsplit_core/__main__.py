"""`python -m torchsplit_core` is the `torchsplit` command."""

import sys

from torchsplit_core.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
