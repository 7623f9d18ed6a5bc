"""Reads profiles from CSV tables (the user's measurements, Triton's files), writes them, estimates requested rows.

The functions turn text into values and back: they open no network connection, run no code and need no torch.
All faults of a table are one InputFault that lists every bad row with its line.
`torchsplit_core.tables.estimated_table` is not imported here: the curves that it needs take a second to load.
"""

from torchsplit_core.tables.cell_parsing import BadCell
from torchsplit_core.tables.columns import COLUMNS, Column, guess_mapping
from torchsplit_core.tables.import_result import Imported
from torchsplit_core.tables.profile_csv import read_profile_csv
from torchsplit_core.tables.profile_merging import merge_profiles
from torchsplit_core.tables.read_any import TableKind, detect, read_any
from torchsplit_core.tables.sheet import LARGEST_TABLE_BYTES, LARGEST_TABLE_ROWS, Sheet, decode, read_sheet
from torchsplit_core.tables.triton_csv import read_model_analyzer, read_perf_analyzer
from torchsplit_core.tables.write_csv import write_profile_csv

__all__ = [
    "COLUMNS",
    "LARGEST_TABLE_BYTES",
    "LARGEST_TABLE_ROWS",
    "BadCell",
    "Column",
    "Imported",
    "Sheet",
    "TableKind",
    "decode",
    "detect",
    "guess_mapping",
    "merge_profiles",
    "read_any",
    "read_model_analyzer",
    "read_perf_analyzer",
    "read_profile_csv",
    "read_sheet",
    "write_profile_csv",
]
