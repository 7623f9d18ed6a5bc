"""Stages of a traced model as programs of their own.

`stage_drafts` says which operations and weights a stage has and which values cross, `build_program`
makes the exported program of one. torch is loaded by `stage_program` and `stage_drafts` alone, so importing
`torchsplit_core.partitioning` stays without it.
"""
