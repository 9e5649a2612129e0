"""Grids of systems and seeds, run to a table of results."""
