"""Search with latent target tags (LaSyn, sections 2.2 and 3.3.1): summed out, the best of each word, or given."""
