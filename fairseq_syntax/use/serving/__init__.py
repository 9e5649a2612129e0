"""Trained models behind HTTP: requests translated in shared batches, and a page to try the models on."""
