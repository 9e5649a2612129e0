"""The binarized syntax of a corpus: one memory-mapped file beside each token dataset. The format: README.md."""

from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.schema import StoredSentence, store_path

__all__ = ["StoredSentence", "SyntaxStore", "store_path"]
