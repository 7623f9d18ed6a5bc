"""Several tenants a slice: the exact plan."""
