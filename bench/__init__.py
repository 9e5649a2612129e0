"""What the project costs, as ratios against its plain counterparts in one run: ``python -m bench [ONLY …]``."""
