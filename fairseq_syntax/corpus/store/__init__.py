"""The store: the binarized syntax of a corpus, in one memory-mapped file per token dataset (format: README.md)."""
