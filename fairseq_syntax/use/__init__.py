"""Using trained models: translation, alignment, export, and a server."""

BEAM = 4  # hypotheses that a search keeps where no number is given: as in the papers of PASCAL and LDD
