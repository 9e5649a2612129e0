"""An HTTP server for trained models: it batches requests, and has a page for trying out models."""
