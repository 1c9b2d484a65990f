"""A finished plan as the files of the programs that train: one module a trainer, nothing computed anew."""
