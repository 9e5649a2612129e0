"""Binarizing, loading and batching of syntax along with fairseq's token datasets."""
