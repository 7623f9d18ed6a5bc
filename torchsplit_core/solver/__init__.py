"""The only package that calls HiGHS: matrices, Pyomo models and programs built row by row.

Every program is solved by one thread with a fixed seed, without output.

    highs         loads a matrix and runs HiGHS
    row_program   an integer program built row by row
    parallel      searches of many programs on several cores
    pyomo_model   a Pyomo model: its incumbent, its bound and how it ended

Import the modules by name. Only the last needs Pyomo, and imports it when a model is first written, because that takes
about half a second, and most plans need only patterns and row programs.
"""
