"""Self-contained HTML pages that draw a sentence: its parse, its translations, attention."""
