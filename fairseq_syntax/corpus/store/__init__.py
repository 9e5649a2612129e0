"""The store: the binarized syntax of a corpus, one memory-mapped file per token dataset. Format: README.md."""
