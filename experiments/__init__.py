"""Binaries that reproduce tables and figures, and the data they use."""
