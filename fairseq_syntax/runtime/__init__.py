"""What every long command stands on: whole files, resumable jobs, workers, progress on a terminal."""
