"""Finds the fastest parallel training plan that fits a cluster, proves it, and says why.

Programs use :mod:`planner.api`; importing the package alone loads nothing.
"""
