"""Job histories of a site (Slurm's accounting, DCGM's samples) as demand by class of jobs and hour.

A job is a request: its arrival is its submission, its service runs from its start to its end.
"""
