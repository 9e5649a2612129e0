"""This package's systems beside fairseq, eole, Hugging Face's transformers and Joey NMT: ``python -m bench.peers``."""
