"""Scores, significance and pictures: the papers' tables and figures from any system's outputs."""
