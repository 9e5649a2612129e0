"""The binarized syntax of a corpus: one memory-mapped file beside each token dataset. The format: README.md."""
