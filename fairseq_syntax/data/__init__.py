"""Binarizing, loading and batching of syntax beside fairseq's token datasets."""
