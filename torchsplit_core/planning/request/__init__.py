"""Plan requests: built, edited, validated, hashed."""
