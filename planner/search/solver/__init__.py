"""Solvers that know only numbers: tables in, indices out.

`problem` says what is asked, `elimination` is exact on graphs of small width (many problems at once).
"""

from planner.search.solver.elimination import Eliminated as Eliminated
from planner.search.solver.elimination import TooWideError as TooWideError
from planner.search.solver.elimination import eliminate as eliminate
from planner.search.solver.elimination import solve_exactly as solve_exactly
from planner.search.solver.problem import Memory as Memory
from planner.search.solver.problem import Problem as Problem
from planner.search.solver.problem import build as build
