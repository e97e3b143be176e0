"""`python -m tfdpflows.cli`, where the console script is not on the PATH."""

import sys

from tfdpflows.cli.program import main

if __name__ == '__main__':
  sys.exit(main())
