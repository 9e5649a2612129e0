"""Translating with trained models: the Translator, interactive input, and trees read out of a model's heads."""
