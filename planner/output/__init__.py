"""What leaves the planner: answers as files of every form, whole or not at all, and never over something else."""
