"""Synthesizers of other libraries, run in an environment of their own."""
