"""Stages of a traced model as programs of their own.

`divide` says which operations and weights a stage has and which values cross, `build_program`
makes the exported program of one. torch is loaded by `build` and `divide` alone, so importing
`torchsplit_core.partitioning` stays without it.
"""
