"""Experiments: scores and significance, contrastive evaluation, calibration, control parses, figures, recipes."""
