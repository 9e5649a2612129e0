"""The base models: a Transformer whose encoder and decoder take syntax systems, and an LSTM."""
