"""Parsing of text: tokenizers, parsers with tree distributions, and jobs over whole corpora."""
