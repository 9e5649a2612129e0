"""Figures: plots, heat maps, and pages of sentences with parses and attention."""
