"""Which layers stand on which stage, and which of them are computed again: numbers in, indices out.

``solver`` knows only tables of seconds; ``options`` makes them from prices, ``refine`` asks both for a candidate.
"""
