"""Text and parses: reading, checking, segmenting, filtering."""
