"""Figures: plots, heat maps, and the page of attention over the parse."""
