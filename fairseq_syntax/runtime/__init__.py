"""The runtime of long commands: atomic files, resumable jobs, worker pools, progress on a terminal."""
