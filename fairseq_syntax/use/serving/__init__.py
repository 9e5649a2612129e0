"""An HTTP server for trained models, with batching and a web page for trying them out."""
