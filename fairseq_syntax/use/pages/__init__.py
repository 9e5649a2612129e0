"""Self-contained HTML pages that show a sentence with its parse, translations and attention."""
