"""Recipes: YAML files that describe experiments from a corpus to a table of scores; reading, running, reporting."""
