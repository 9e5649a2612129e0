"""Scores of translations and of trees, with significance."""
