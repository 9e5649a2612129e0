"""The models that carry the systems: a Transformer whose encoder and decoder take systems by option, and an LSTM."""
