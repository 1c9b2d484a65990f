"""Accuracy: measured runs read, priced and compared."""
