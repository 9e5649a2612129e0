"""Trained models at work: translation, alignment, export, a server."""
