"""LaSyn (Yang et al. 2019): latent target tags, their exact softmax, their batches and their search."""
