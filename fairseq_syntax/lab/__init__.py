"""What is measured: scores and their significance, contrast, calibration, controls, figures, recipes."""
