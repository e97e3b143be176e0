"""The command line: `tfdpflows COMMAND --flag=value`."""

from tfdpflows.cli.program import main

__all__ = ['main']
