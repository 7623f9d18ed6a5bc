"""Plans with several tenants a slice."""
