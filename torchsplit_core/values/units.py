"""Units of bytes. A name that ends in `_gib` or `_gib_per_s` counts GIB, one in `_gb` or `_gb_per_s` counts GB.

Memory is told in GiB; links, memory bandwidths and sizes of values on the way are told in GB and MB, as
datasheets give them, but for the links of a placement, which count GiB.
"""

GIB = 2**30
MIB = 2**20
GB = 10**9
MB = 10**6
