"""From text to parsed lines: tokenizers, parsers, the distributions behind their trees, and jobs over whole corpora."""
