"""Use of trained models: translation, alignment, export and serving."""

BEAM = 4  # the default beam size, as in the paper of PASCAL; that of LDD names none
