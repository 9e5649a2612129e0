"""Use of trained models: translation, alignment, export and serving."""

BEAM = 4  # the default beam size, as in the papers of PASCAL and LDD
