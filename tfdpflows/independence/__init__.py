"""Checks that no example touches another, nor decides whether training ends."""
