"""Pools of different chips: which of them train, which stages stand on which, and which layers on those.

``place`` prices a layout whose stages stand on several pools; ``bounds`` says what no placing of it can beat;
``search`` looks through all of them, best bound first.
"""
