"""Recipes: a YAML file that takes a corpus to a scored table, and the programs that read, run and report it."""
