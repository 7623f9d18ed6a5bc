"""Units of bytes. A name that ends in `_gib` or `_gib_per_s` counts GIB, one in `_gb` or `_gb_per_s` counts GB.

Memory is in GiB; links, memory bandwidths and sizes of transferred values are in GB and MB, as in datasheets, but
the links of a placement are in GiB/s.
"""

GIB = 2**30
MIB = 2**20
GB = 10**9
MB = 10**6
