"""Configurations of trainers, read back: the only place that knows their key names on the way in."""
