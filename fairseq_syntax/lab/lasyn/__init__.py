"""What is measured of LaSyn alone: translations by varied tag sequences (its Figure 3 and Table 5)."""
