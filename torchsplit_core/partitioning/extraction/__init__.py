"""Stages of a traced model as programs.

`stage_drafts` determines the operations and weights of each stage and the values that cross; `build_program` makes the
exported program of one. Only `stage_program` and `stage_drafts` load torch, so importing `torchsplit_core.partitioning`
does not.
"""
