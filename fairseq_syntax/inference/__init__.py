"""Inference with trained models: interactive input, search output, detokenization, word alignments."""
