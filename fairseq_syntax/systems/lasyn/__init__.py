"""LaSyn (Yang et al. 2019): latent target tags, their exact softmax, repeated batches and search."""

from fairseq_syntax.systems.lasyn import model, tag_search

__all__ = ["model", "tag_search"]
