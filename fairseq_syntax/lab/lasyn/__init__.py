"""LaSyn's diversity experiment: translations with varied tag sequences (its Figure 3 and Table 5)."""
