"""HiGHS behind one door: matrices, Pyomo models and programs built row by row.

Everything is solved by one thread with a fixed seed, without output.

    highs         a matrix handed over, and what HiGHS says of it
    row_program   an integer program built a row at a time
    pyomo_model   a Pyomo model: its incumbent, its bound and how it ended

The modules are imported by name. Only the last needs Pyomo, and imports it when a model is first written: that takes
about half a second, and most plans are found by patterns and programs of rows.
"""
