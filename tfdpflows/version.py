"""The version of the package, for setup.py and for what the library saves."""

__version__ = '0.2.0.dev0'
