"""Synthesizers of other papers, written here to be compared with."""
